//! The configuration of a simulation.

use std::time::Duration;

use super::durability::Durability;
use super::nic::Costs;
use crate::Visibility;

/// How the bytes of a WRITE land in memory, and those of a READ are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Landing {
    /// All at once. This is the fastest to simulate; the device reports
    /// [`LeftToRight`](crate::WriteOrder::LeftToRight).
    #[default]
    AtOnce,
    /// Piece by piece, lower addresses first; in any order into memory of [relaxed
    /// ordering](crate::Access::RELAXED_ORDERING).
    LeftToRight,
    /// Piece by piece in any order; the device reports [`Unordered`](crate::WriteOrder::Unordered). A READ reads piece by piece in any order
    /// too, a cache line as a whole unless [`reads_words_in_any_order`](SimConfig::reads_words_in_any_order).
    AnyOrder,
}

/// Probabilities of faults. Each is 0 unless set; a fault of probability 0 draws no random number.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub struct FaultRates {
    /// A UD message is lost.
    pub datagram_loss: f64,
    /// A UD message is delayed by up to [`delay`](FaultRates::delay), and others overtake it.
    pub datagram_delay: f64,
    /// A UD message is delayed by up to [`straggle`](FaultRates::straggle), so that thousands may overtake it.
    pub datagram_straggle: f64,
    /// A UD message is duplicated. The copy may be delayed too, so that other messages or the original overtake
    /// it.
    pub datagram_copy: f64,
    /// A UC message is lost.
    pub unreliable_loss: f64,
    /// A message, response or acknowledgement of an RC connection is lost and must be retransmitted.
    pub reliable_loss: f64,
    /// A message of a connection is delayed by up to [`delay`](FaultRates::delay), and those behind it are
    /// delayed too.
    pub connected_delay: f64,
    /// The longest delay.
    pub delay: Duration,
    /// The longest delay of a straggler.
    pub straggle: Duration,
}

impl FaultRates {
    /// Sets [`datagram_loss`](FaultRates::datagram_loss).
    pub fn datagram_loss(mut self, probability: f64) -> Self {
        self.datagram_loss = probability;
        self
    }

    /// Sets [`datagram_delay`](FaultRates::datagram_delay).
    pub fn datagram_delay(mut self, probability: f64) -> Self {
        self.datagram_delay = probability;
        self
    }

    /// Sets [`datagram_straggle`](FaultRates::datagram_straggle), and [`straggle`](FaultRates::straggle).
    pub fn datagram_straggle(mut self, probability: f64, longest: Duration) -> Self {
        self.datagram_straggle = probability;
        self.straggle = longest;
        self
    }

    /// Sets [`datagram_copy`](FaultRates::datagram_copy).
    pub fn datagram_copy(mut self, probability: f64) -> Self {
        self.datagram_copy = probability;
        self
    }

    /// Sets [`unreliable_loss`](FaultRates::unreliable_loss).
    pub fn unreliable_loss(mut self, probability: f64) -> Self {
        self.unreliable_loss = probability;
        self
    }

    /// Sets [`reliable_loss`](FaultRates::reliable_loss).
    pub fn reliable_loss(mut self, probability: f64) -> Self {
        self.reliable_loss = probability;
        self
    }

    /// Sets [`connected_delay`](FaultRates::connected_delay).
    pub fn connected_delay(mut self, probability: f64) -> Self {
        self.connected_delay = probability;
        self
    }

    /// Sets [`delay`](FaultRates::delay).
    pub fn delay(mut self, longest: Duration) -> Self {
        self.delay = longest;
        self
    }
}

/// The configuration of a simulation, apart from its seed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimConfig {
    /// The costs of all operations.
    pub costs: Costs,
    /// How WRITEs land, and in which order READs read.
    pub landing: Landing,
    /// A READ reads word by word (8 bytes) in any order, as Soft-RoCE does; the device reports
    /// [`reads_first_word_first`](crate::Capabilities::reads_first_word_first) as `false`.
    pub reads_words_in_any_order: bool,
    /// How long a peer's atomic takes between its load of the word and its store. What the owner's CPU or a WRITE does to the word meanwhile
    /// is lost, as on a NIC whose atomics are atomic with each other only. 0: they are atomic with the CPU as well (`IBV_ATOMIC_GLOB`).
    pub atomic_gap: Duration,
    /// What a completion at the initiator means. With
    /// [`CompletionMeansDelivered`](Visibility::CompletionMeansDelivered), the bytes of a WRITE land up to
    /// [`late`](SimConfig::late) after the acknowledgement.
    pub visibility: Visibility,
    /// The longest delay of an acknowledged WRITE.
    pub late: Duration,
    /// When bytes of persistent memory become durable.
    pub durability: Durability,
    /// Probabilities of faults.
    pub faults: FaultRates,
    /// Cores of each node, on which its actors run.
    pub cores: usize,
    /// A core's [published words](crate::SharedRegion::publish_u64) take effect, and its clock goes on, with the CPU time of its
    /// turn. Otherwise both stand still during a turn, as for programs whose turns are short.
    pub timed_turns: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            costs: Costs::default(),
            landing: Landing::AtOnce,
            reads_words_in_any_order: false,
            atomic_gap: Duration::ZERO,
            visibility: Visibility::CompletionMeansVisible,
            late: Duration::ZERO,
            durability: Durability::default(),
            faults: FaultRates::default(),
            cores: 8,
            timed_turns: false,
        }
    }
}

impl SimConfig {
    /// Sets [`costs`](SimConfig::costs).
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// Sets [`landing`](SimConfig::landing).
    pub fn landing(mut self, landing: Landing) -> Self {
        self.landing = landing;
        self
    }

    /// Sets [`reads_words_in_any_order`](SimConfig::reads_words_in_any_order).
    pub fn reads_words_in_any_order(mut self, any_order: bool) -> Self {
        self.reads_words_in_any_order = any_order;
        self
    }

    /// Sets [`atomic_gap`](SimConfig::atomic_gap).
    pub fn atomic_gap(mut self, gap: Duration) -> Self {
        self.atomic_gap = gap;
        self
    }

    /// Lets completions mean only that the other NIC has the data, which land up to `late` afterwards.
    pub fn delivered_late(mut self, late: Duration) -> Self {
        self.visibility = Visibility::CompletionMeansDelivered;
        self.late = late;
        self
    }

    /// Sets [`durability`](SimConfig::durability).
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets [`faults`](SimConfig::faults).
    pub fn faults(mut self, faults: FaultRates) -> Self {
        self.faults = faults;
        self
    }

    /// Sets [`timed_turns`](SimConfig::timed_turns).
    pub fn timed_turns(mut self) -> Self {
        self.timed_turns = true;
        self
    }

    /// Sets [`cores`](SimConfig::cores).
    ///
    /// # Panics
    /// If it is 0.
    pub fn cores(mut self, cores: usize) -> Self {
        assert!(cores > 0, "a node without a core");
        self.cores = cores;
        self
    }
}

/// A duration in nanoseconds, saturated at some 584 years.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
