//! The mixes of the core workloads.

use rand::Rng;

/// A core workload of YCSB. (E, short scans, is not supported.)
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
pub enum Workload {
    /// Update heavy: 50% reads, 50% updates, zipfian.
    A,
    /// Read mostly: 95% reads, 5% updates, zipfian.
    B,
    /// Read only, zipfian.
    C,
    /// Read latest: 95% reads, 5% inserts; the latest records are read most.
    D,
    /// Read-modify-write: 50% reads, 50% read-modify-writes, zipfian.
    F,
}

/// The distribution of a client's requests over the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestDistribution {
    /// Some records are popular, scattered over all of them.
    ScrambledZipfian,
    /// The most recently inserted records are popular.
    Latest,
}

/// One kind of operation.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Operation {
    /// Write a record that does not exist yet, while loading.
    Load,
    /// Read a record.
    Read,
    /// Overwrite a record.
    Update,
    /// Write a record that does not exist yet.
    Insert,
    /// Read a record, then overwrite it.
    ReadModifyWrite,
}

impl Operation {
    /// Every kind, in the order in which they are reported.
    pub const ALL: [Operation; 5] = [
        Operation::Load,
        Operation::Read,
        Operation::Update,
        Operation::Insert,
        Operation::ReadModifyWrite,
    ];

    /// Its name in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Load => "load",
            Operation::Read => "read",
            Operation::Update => "update",
            Operation::Insert => "insert",
            Operation::ReadModifyWrite => "read-modify-write",
        }
    }
}

impl Workload {
    /// Draws the next operation.
    pub fn next_operation(self, rng: &mut impl Rng) -> Operation {
        let (reads_percent, other) = match self {
            Workload::A => (50, Operation::Update),
            Workload::B => (95, Operation::Update),
            Workload::C => return Operation::Read,
            Workload::D => (95, Operation::Insert),
            Workload::F => (50, Operation::ReadModifyWrite),
        };
        if rng.random_range(0..100) < reads_percent { Operation::Read } else { other }
    }

    /// The distribution of its requests over the records.
    #[must_use]
    pub fn distribution(self) -> RequestDistribution {
        match self {
            Workload::D => RequestDistribution::Latest,
            _ => RequestDistribution::ScrambledZipfian,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    #[test]
    fn the_mixes_are_those_of_the_original() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut share = |workload: Workload, operation| {
            let draws = 100_000;
            let hits =
                (0..draws).filter(|_| workload.next_operation(&mut rng) == operation).count();
            (hits as f64 / f64::from(draws) * 100.0).round()
        };
        assert_eq!(share(Workload::A, Operation::Update), 50.0);
        assert_eq!(share(Workload::B, Operation::Update), 5.0);
        assert_eq!(share(Workload::B, Operation::Read), 95.0);
        assert_eq!(share(Workload::C, Operation::Read), 100.0);
        assert_eq!(share(Workload::D, Operation::Insert), 5.0);
        assert_eq!(share(Workload::F, Operation::ReadModifyWrite), 50.0);
    }
}
