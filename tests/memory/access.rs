//! The clients of lent memory, as the cases use them: futures, and threads that poll.

use std::cell::RefCell;

use farcall::Bytes;
use farcall::memory::{
    BatchError, MemoryError, Outcome, PendingBatch, PollMemory, Remote, RemoteMemory,
};
#[cfg(feature = "sim")]
use farcall::rack::Host;

/// One step of a batch.
#[derive(Clone)]
pub(crate) enum Step {
    Read(Remote),
    Write(Remote, Bytes),
    CompareAndSwap(Remote, u64, u64),
    FetchAdd(Remote, u64),
    Fence,
}

/// A client of either kind.
pub(crate) trait Access: Sized {
    async fn read(&self, at: &Remote) -> Result<Bytes, MemoryError>;
    async fn write(&self, at: &Remote, bytes: impl Into<Bytes>) -> Result<(), MemoryError>;
    async fn compare_and_swap(&self, at: &Remote, old: u64, new: u64) -> Result<u64, MemoryError>;
    async fn fetch_add(&self, at: &Remote, add: u64) -> Result<u64, MemoryError>;
    async fn run(&self, steps: Vec<Step>) -> Result<Vec<Outcome>, BatchError>;

    fn batch(&self) -> Batch<'_, Self> {
        Batch { memory: self, steps: Vec::new() }
    }
}

pub(crate) struct Batch<'a, M> {
    memory: &'a M,
    steps: Vec<Step>,
}

impl<M> Clone for Batch<'_, M> {
    fn clone(&self) -> Self {
        Batch { memory: self.memory, steps: self.steps.clone() }
    }
}

impl<M: Access> Batch<'_, M> {
    fn with(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub(crate) fn read(self, at: &Remote) -> Self {
        self.with(Step::Read(*at))
    }

    pub(crate) fn write(self, at: &Remote, bytes: impl Into<Bytes>) -> Self {
        self.with(Step::Write(*at, bytes.into()))
    }

    pub(crate) fn compare_and_swap(self, at: &Remote, old: u64, new: u64) -> Self {
        self.with(Step::CompareAndSwap(*at, old, new))
    }

    pub(crate) fn fetch_add(self, at: &Remote, add: u64) -> Self {
        self.with(Step::FetchAdd(*at, add))
    }

    pub(crate) fn fence(self) -> Self {
        self.with(Step::Fence)
    }

    pub(crate) async fn post(self) -> Result<Vec<Outcome>, BatchError> {
        self.memory.run(self.steps).await
    }
}

impl Access for RemoteMemory {
    async fn read(&self, at: &Remote) -> Result<Bytes, MemoryError> {
        RemoteMemory::read(self, at).await
    }

    async fn write(&self, at: &Remote, bytes: impl Into<Bytes>) -> Result<(), MemoryError> {
        RemoteMemory::write(self, at, bytes).await
    }

    async fn compare_and_swap(&self, at: &Remote, old: u64, new: u64) -> Result<u64, MemoryError> {
        RemoteMemory::compare_and_swap(self, at, old, new).await
    }

    async fn fetch_add(&self, at: &Remote, add: u64) -> Result<u64, MemoryError> {
        RemoteMemory::fetch_add(self, at, add).await
    }

    async fn run(&self, steps: Vec<Step>) -> Result<Vec<Outcome>, BatchError> {
        let batch = steps.iter().fold(RemoteMemory::batch(self), |batch, step| match step {
            Step::Read(at) => batch.read(at),
            Step::Write(at, bytes) => batch.write(at, bytes.clone()),
            Step::CompareAndSwap(at, old, new) => batch.compare_and_swap(at, *old, *new),
            Step::FetchAdd(at, add) => batch.fetch_add(at, *add),
            Step::Fence => batch.fence(),
        });
        batch.post().await
    }
}

/// A polling client, within an `async` program.
pub(crate) struct Polled {
    memory: RefCell<PollMemory>,
    turns: Turns,
}

enum Turns {
    Here,
    #[cfg(feature = "sim")]
    Rack(Host),
}

impl Polled {
    pub(crate) fn here(memory: PollMemory) -> Polled {
        Polled { memory: RefCell::new(memory), turns: Turns::Here }
    }

    #[cfg(feature = "sim")]
    pub(crate) fn on_rack(memory: PollMemory, host: &Host) -> Polled {
        Polled { memory: RefCell::new(memory), turns: Turns::Rack(host.clone()) }
    }

    pub(crate) fn memory(&self) -> std::cell::RefMut<'_, PollMemory> {
        self.memory.borrow_mut()
    }

    /// Polls until it has ended.
    async fn end(&self, mut pending: PendingBatch) -> Result<Vec<Outcome>, BatchError> {
        let mut look = || {
            let mut memory = self.memory();
            let taken = memory.take(&mut pending)?;
            Some(taken.map(|outcomes| outcomes.to_vec()))
        };
        match &self.turns {
            Turns::Here => loop {
                self.memory().poll();
                if let Some(ended) = look() {
                    return ended;
                }
                std::thread::yield_now();
            },
            #[cfg(feature = "sim")]
            Turns::Rack(host) => {
                let step = |now| {
                    let progress = self.memory().turn(now);
                    look().ok_or(progress)
                };
                host.turns(step).await
            }
        }
    }

    async fn end_one(
        &self,
        started: Result<PendingBatch, MemoryError>,
    ) -> Result<Outcome, MemoryError> {
        let ended = self.end(started?).await.map_err(|error| error.error)?;
        assert_eq!(ended.len(), 1);
        Ok(ended.into_iter().next().unwrap())
    }
}

fn word(outcome: Outcome) -> u64 {
    outcome.word().expect("an atomic operation gives a word")
}

impl Access for Polled {
    async fn read(&self, at: &Remote) -> Result<Bytes, MemoryError> {
        let started = self.memory().start_read(at);
        match self.end_one(started).await? {
            Outcome::Read(bytes) => Ok(bytes),
            other => panic!("a read gives {other:?}"),
        }
    }

    async fn write(&self, at: &Remote, bytes: impl Into<Bytes>) -> Result<(), MemoryError> {
        let started = self.memory().start_write(at, &bytes.into());
        assert_eq!(self.end_one(started).await?, Outcome::Written);
        Ok(())
    }

    async fn compare_and_swap(&self, at: &Remote, old: u64, new: u64) -> Result<u64, MemoryError> {
        let started = self.memory().start_compare_and_swap(at, old, new);
        self.end_one(started).await.map(word)
    }

    async fn fetch_add(&self, at: &Remote, add: u64) -> Result<u64, MemoryError> {
        let started = self.memory().start_fetch_add(at, add);
        self.end_one(started).await.map(word)
    }

    async fn run(&self, steps: Vec<Step>) -> Result<Vec<Outcome>, BatchError> {
        let started = {
            let mut memory = self.memory();
            let batch = steps.iter().fold(memory.batch(), |batch, step| match step {
                Step::Read(at) => batch.read(at),
                Step::Write(at, bytes) => batch.write(at, bytes),
                Step::CompareAndSwap(at, old, new) => batch.compare_and_swap(at, *old, *new),
                Step::FetchAdd(at, add) => batch.fetch_add(at, *add),
                Step::Fence => batch.fence(),
            });
            batch.start()
        };
        self.end(started?).await
    }
}
