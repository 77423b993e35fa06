//! What kind of world it is.

use std::time::Duration;

use super::durability::Durability;
use super::nic::Costs;
use crate::Visibility;

/// How the bytes of a WRITE land in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Landing {
    /// All at one moment. The quickest to simulate; the device says
    /// [`LeftToRight`](crate::WriteOrder::LeftToRight).
    #[default]
    AtOnce,
    /// Piece by piece, lower addresses first. Into memory of
    /// [relaxed ordering](crate::Access::RELAXED_ORDERING): in any order.
    LeftToRight,
    /// Piece by piece in any order; the device says [`Unordered`](crate::WriteOrder::Unordered).
    AnyOrder,
}

/// Faults by probability; each is 0 unless set, and then draws no random number.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub struct FaultRates {
    /// A UD message is lost.
    pub datagram_loss: f64,
    /// A UD message is held up for up to [`delay`](FaultRates::delay), and others overtake it.
    pub datagram_delay: f64,
    /// A UD message comes so late, up to [`straggle`](FaultRates::straggle), that thousands may overtake it.
    pub datagram_straggle: f64,
    /// A UD message comes twice; its copy may be held up too, and then others, or itself, overtake it.
    pub datagram_copy: f64,
    /// A UC message is lost.
    pub unreliable_loss: f64,
    /// A message, response or acknowledgement of an RC connection is lost, and has to be sent again.
    pub reliable_loss: f64,
    /// A message of a connection is held up for up to [`delay`](FaultRates::delay), and those behind it
    /// with it.
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

/// What a world is made of, beside its seed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimConfig {
    /// What things cost.
    pub costs: Costs,
    /// How WRITEs land.
    pub landing: Landing,
    /// What a completion at the initiator says. With
    /// [`CompletionMeansDelivered`](Visibility::CompletionMeansDelivered) the bytes of a WRITE land up to
    /// [`late`](SimConfig::late) after they were acknowledged.
    pub visibility: Visibility,
    /// How late an acknowledged WRITE may land.
    pub late: Duration,
    /// What it takes until persistent memory is durable.
    pub durability: Durability,
    /// Faults by probability.
    pub faults: FaultRates,
    /// Cores of each node, for its actors.
    pub cores: usize,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            costs: Costs::default(),
            landing: Landing::AtOnce,
            visibility: Visibility::CompletionMeansVisible,
            late: Duration::ZERO,
            durability: Durability::default(),
            faults: FaultRates::default(),
            cores: 8,
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

    /// Completions say only that the other NIC has the data, which land up to `late` after that.
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

/// A duration in nanoseconds, at most some 584 years.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
