//! Work made up at random, against a model of what an in-order reliable connection must do.

use std::collections::VecDeque;
use std::ops::Range;

use farcall_verbs::{
    Access, Local, LocalMut, PostError, QpType, RemoteRegion, SharedRegion, Status, WorkRequest,
};

use crate::end::{End, Role, turn};
use crate::rig::{Rig, discover, expose, filled, held, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const MEMORY_BYTES: usize = 128 << 10;
const REQUESTS: usize = 400;
/// Send and receive queues: small, so that they are often full.
const DEPTH: usize = 24;

/// Numbers from a seed, the same at both ends.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) as usize) % bound
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Send { imm: bool },
    Write { at: usize, imm: bool },
    Read { at: usize },
    CompareAndSwap { at: usize, expected: u64 },
    FetchAdd { at: usize },
}

/// One request: its work, its bytes (by seed and length), and what the model says that it brings back.
#[derive(Debug, Clone)]
struct Step {
    work: Work,
    seed: u64,
    len: usize,
    brings: Option<Vec<u8>>,
}

impl Step {
    fn bytes(&self) -> Vec<u8> {
        pattern(self.seed, self.len)
    }

    fn imm(&self) -> u32 {
        self.seed as u32
    }

    fn has_imm(&self) -> bool {
        matches!(self.work, Work::Send { imm: true } | Work::Write { imm: true, .. })
    }

    fn consumes_a_receive(&self) -> bool {
        matches!(self.work, Work::Send { .. } | Work::Write { imm: true, .. })
    }
}

/// What will be posted, and what the target's memory holds at the end.
fn plan(seed: u64, atomics: bool) -> (Vec<Step>, Vec<u8>) {
    const LENGTHS: [usize; 12] = [0, 1, 7, 8, 32, 47, 48, 49, 256, 1_000, 5_000, 70_000];
    let mut dice = Dice::new(seed);
    let mut memory = vec![0; MEMORY_BYTES];
    let mut steps = Vec::new();
    for number in 0..REQUESTS {
        let mut len = LENGTHS[dice.below(LENGTHS.len())];
        // Close together, so that requests often overlap.
        let at = dice.below(MEMORY_BYTES - len).min(dice.below(4096) + len % 512);
        let word_at = at / 8 * 8;
        let work = match dice.below(if atomics { 8 } else { 6 }) {
            0 => Work::Send { imm: false },
            1 => Work::Send { imm: true },
            2 | 3 => Work::Write { at, imm: false },
            4 => Work::Write { at, imm: true },
            5 => Work::Read { at },
            6 => Work::FetchAdd { at: word_at },
            _ => {
                let found = word(&memory[word_at..word_at + 8]);
                let expected = if dice.below(2) == 0 { found } else { !found };
                Work::CompareAndSwap { at: word_at, expected }
            }
        };
        if matches!(work, Work::FetchAdd { .. } | Work::CompareAndSwap { .. }) {
            len = 8;
        }
        let mut step = Step { work, seed: seed * 10_000 + number as u64, len, brings: None };
        match work {
            Work::Send { .. } => {}
            Work::Write { at, .. } => memory[at..at + len].copy_from_slice(&step.bytes()),
            Work::Read { at } => step.brings = Some(memory[at..at + len].to_vec()),
            Work::CompareAndSwap { at, expected } => {
                let place = &mut memory[at..at + 8];
                step.brings = Some(place.to_vec());
                if word(place) == expected {
                    place.copy_from_slice(&step.bytes());
                }
            }
            Work::FetchAdd { at } => {
                let place = &mut memory[at..at + 8];
                step.brings = Some(place.to_vec());
                let sum = word(place).wrapping_add(word(&step.bytes()));
                place.copy_from_slice(&sum.to_ne_bytes());
            }
        }
        steps.push(step);
    }
    (steps, memory)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

/// Any work, any sizes, any signaling, any lists: memory and messages are what the model says.
pub(crate) async fn random_work_agrees_with_the_model(end: &mut End) -> CaseResult {
    for seed in 1..=12 {
        let (steps, memory) = plan(seed, end.device().caps().atomics);
        let mut rig = Rig::with(end.device(), QpType::Rc, DEPTH, None)?;
        rig.connect(end).await?;
        match end.role() {
            Role::Initiator => {
                let remote = discover(end).await?;
                let scratch = rig.pd.alloc_shared(MEMORY_BYTES, Access::empty())?;
                let mut initiator = Initiator {
                    rig: &mut rig,
                    steps: &steps,
                    remote,
                    scratch,
                    dice: Dice::new(seed + 1_000_000),
                    next: 0,
                    unsignaled: 0,
                    buffers: VecDeque::new(),
                    signaled: VecDeque::new(),
                };
                initiator.run(end).await?;
                rig.serve_until_met(end).await?;
            }
            Role::Target => {
                let region = expose(end, &rig.pd, MEMORY_BYTES, Access::all())?;
                receive_all(end, &mut rig, &steps, seed).await?;
                rig.serve_until_met(end).await?;
                let found = held(&region, 0, MEMORY_BYTES);
                let wrong = found.iter().zip(&memory).position(|(found, wanted)| found != wanted);
                ensure_eq!(wrong, None, "first wrong byte of memory with seed {seed}");
            }
        }
    }
    Ok(())
}

/// The initiator's half: what is still to be posted, and what is in flight.
struct Initiator<'s> {
    rig: &'s mut Rig,
    steps: &'s [Step],
    remote: RemoteRegion,
    scratch: SharedRegion,
    dice: Dice,
    /// The next step to be posted.
    next: usize,
    /// Places taken since the last signaled request: one must be signaled before the queue is full.
    unsignaled: usize,
    /// Buffers in the queue pair, in order: whose, and what each must hold when it comes back.
    buffers: VecDeque<(usize, Vec<u8>)>,
    /// Signaled requests, in order.
    signaled: VecDeque<u64>,
}

impl Initiator<'_> {
    async fn run(&mut self, end: &End) -> CaseResult {
        while self.next < self.steps.len() || !self.signaled.is_empty() {
            let burst = self.next..(self.next + 1 + self.dice.below(8)).min(self.steps.len());
            if self.dice.below(2) == 0 {
                self.post_list(end, burst).await?;
            } else {
                self.post_singly(end, burst).await?;
            }
            if self.next == self.steps.len() || self.dice.below(3) == 0 {
                self.retire(end).await?;
            }
        }
        ensure!(self.buffers.is_empty(), "{} buffers never came back", self.buffers.len());
        Ok(())
    }

    /// What a full queue leaves in the list is posted later, from the same list.
    async fn post_list(&mut self, end: &End, burst: Range<usize>) -> CaseResult {
        let mut list = Vec::new();
        for number in burst {
            list.push(self.request(number, None)?);
        }
        while !list.is_empty() {
            let before = list.len();
            let posted = self.rig.qp.post_send(&mut list);
            for _ in list.len()..before {
                self.note_buffer(false);
            }
            match posted {
                Ok(()) => ensure!(list.is_empty(), "{} requests left of a list taken", list.len()),
                Err(PostError::QueueFull) => self.retire(end).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn post_singly(&mut self, end: &End, burst: Range<usize>) -> CaseResult {
        let max_inline = end.device().caps().max_inline;
        for number in burst {
            let bytes = self.steps[number].bytes();
            let inline = bytes.len() <= max_inline && self.dice.below(2) == 0;
            let mut request = self.request(number, inline.then_some(&bytes[..]))?;
            while let Err((error, refused)) = self.rig.qp.post_send_one(request) {
                ensure_eq!(error, PostError::QueueFull, "a request that was refused");
                self.retire(end).await?;
                request = refused;
            }
            self.note_buffer(inline);
        }
        Ok(())
    }

    /// The next step has been posted.
    fn note_buffer(&mut self, inline: bool) {
        let step = &self.steps[self.next];
        if !inline {
            let wanted = step.brings.clone().unwrap_or_else(|| step.bytes());
            self.buffers.push_back((self.next, wanted));
        }
        self.next += 1;
    }

    /// Waits for the oldest signaled request, and takes back what it retires.
    async fn retire(&mut self, end: &End) -> CaseResult {
        let Some(id) = self.signaled.pop_front() else { return Ok(()) };
        self.rig.success(end, id).await?;
        for buffer in self.rig.reclaimed() {
            let Some((number, wanted)) = self.buffers.pop_front() else {
                return Err(Halt::failed("a buffer came back that was not in flight"));
            };
            let work = self.steps[number].work;
            ensure!(*buffer == *wanted, "{work:?}, request {number}, gave back other bytes");
        }
        Ok(())
    }

    /// The request of one step; with `inline` it owns no buffer.
    fn request<'a>(
        &mut self,
        number: usize,
        inline: Option<&'a [u8]>,
    ) -> CaseResult<WorkRequest<'a>> {
        let (step, pd) = (&self.steps[number], &self.rig.pd);
        let there = |at: usize| self.remote.slice(at as u64, step.len as u64);
        let local = || -> CaseResult<Local<'a>> {
            Ok(match inline {
                Some(bytes) => bytes.into(),
                None => filled(pd, &step.bytes())?.into(),
            })
        };
        // What brings something back has no inline form: it uses shared memory instead.
        let into = || -> CaseResult<LocalMut> {
            if inline.is_some() {
                return Ok(self.scratch.slice(0, step.len).into());
            }
            let mut buffer = room(pd, step.len)?;
            buffer.set_len(step.len);
            Ok(buffer.into())
        };
        let request = match step.work {
            Work::Send { imm: false } => WorkRequest::send(local()?).unsignaled(),
            Work::Send { imm: true } => WorkRequest::send(local()?).imm(step.imm()).unsignaled(),
            Work::Write { at, imm } => {
                let write = WorkRequest::write(local()?, there(at)?);
                if imm { write.imm(step.imm()).unsignaled() } else { write.unsignaled() }
            }
            Work::Read { at } => WorkRequest::read(into()?, there(at)?),
            Work::CompareAndSwap { at, expected } => {
                let new = word(&step.bytes());
                WorkRequest::compare_and_swap(into()?, there(at)?, expected, new)
            }
            Work::FetchAdd { at } => {
                WorkRequest::fetch_add(into()?, there(at)?, word(&step.bytes()))
            }
        };
        self.unsignaled += 1;
        let last = number + 1 == self.steps.len();
        if last || self.unsignaled >= DEPTH / 2 || self.dice.below(4) == 0 {
            self.unsignaled = 0;
            self.signaled.push_back(number as u64);
            return Ok(request.signaled(number as u64));
        }
        Ok(request)
    }
}

/// Posts receives at its own pace, and compares each arrival with the model.
async fn receive_all(end: &mut End, rig: &mut Rig, steps: &[Step], seed: u64) -> CaseResult {
    let mut dice = Dice::new(seed + 2_000_000);
    let wanted: Vec<&Step> = steps.iter().filter(|step| step.consumes_a_receive()).collect();
    let (mut posted, mut arrived) = (0, 0);
    let deadline_ns = end.deadline_ns();
    while arrived < wanted.len() {
        for _ in 0..dice.below(6) {
            if posted < wanted.len() && posted - arrived < DEPTH {
                let is_write = matches!(wanted[posted].work, Work::Write { .. });
                let buffer = match (is_write, wanted[posted].len) {
                    (true, _) | (false, 0) if dice.below(2) == 0 => None,
                    (true, _) => Some(room(&rig.pd, 8)?),
                    (false, len) => Some(room(&rig.pd, len + dice.below(3))?),
                };
                rig.qp.post_recv(posted as u64, buffer)?;
                posted += 1;
            }
        }
        while let Some(completion) = rig.poll_once()? {
            let step = wanted[arrived];
            let found = (completion.status, completion.id, completion.imm);
            let expected = (Status::Success, arrived as u64, step.has_imm().then(|| step.imm()));
            ensure_eq!(found, expected, "arrival {arrived} with seed {seed}: {:?}", step.work);
            ensure_eq!(completion.byte_len as usize, step.len, "length of {:?}", step.work);
            let bytes = step.bytes();
            match step.work {
                Work::Send { .. } => {
                    let message = completion.buffer.as_deref().or(completion.payload());
                    ensure!(
                        message.unwrap_or_default() == bytes,
                        "message {arrived} changed, with seed {seed}"
                    );
                }
                _ => ensure!(
                    completion.payload().is_none_or(|payload| payload == bytes),
                    "the payload of arrival {arrived} is not what was written, with seed {seed}"
                ),
            }
            arrived += 1;
        }
        ensure!(end.device().now_ns() < deadline_ns, "only {arrived} arrivals in time");
        turn().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_make_the_same_plan_with_all_kinds_of_work() {
        let ((steps, memory), (again, same)) = (plan(3, true), plan(3, true));
        assert_eq!(memory, same);
        assert_eq!(steps.len(), again.len());
        for (kind, name) in [
            (steps.iter().any(|step| matches!(step.work, Work::Read { .. })), "READ"),
            (steps.iter().any(|step| matches!(step.work, Work::FetchAdd { .. })), "FETCH_ADD"),
            (steps.iter().any(Step::has_imm), "immediate"),
            (steps.iter().any(|step| step.len == 70_000), "long"),
        ] {
            assert!(kind, "no {name} in the plan");
        }
    }
}
