//! Sleeping until a peer has written into memory.

use farcall_verbs::{
    Access, CompletionChannel, Operation, QpType, RemoteRegion, SharedRegion, Wake, WorkRequest,
};

use crate::end::{End, Role, turn};
use crate::rig::{Rig, discover, expose, filled, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// A sleeper that is not woken for longer has missed its wake-up.
const SLEEP_NS: u64 = 4_000_000_000;

/// Bytes of a region, beyond what any ring or cell holds.
const REGION_BYTES: usize = 100_000;

/// A region that peers may use in all ways, and the channel that it is watched on.
struct Watched {
    region: SharedRegion,
    channel: CompletionChannel,
}

impl Watched {
    fn new(end: &mut End, rig: &Rig) -> CaseResult<Watched> {
        let channel = end.device().create_completion_channel()?;
        let region = expose(end, &rig.pd, REGION_BYTES, Access::all())?;
        ensure_eq!(region.watch(&channel)?, Wake::Event, "what watching answers");
        Ok(Watched { region, channel })
    }

    /// Waits until `look` finds what it looks for: look, arm, look once more, sleep.
    async fn sleep_until(&self, end: &End, look: impl Fn(&SharedRegion) -> bool) -> CaseResult {
        loop {
            if look(&self.region) {
                return Ok(());
            }
            self.region.arm();
            if look(&self.region) {
                return Ok(());
            }
            if !end.sleep_until_event(&self.channel, SLEEP_NS).await? {
                return Err(Halt::failed(match look(&self.region) {
                    true => "the write landed, and its sleeper was not woken",
                    false => "nothing was written, and nobody was woken",
                }));
            }
        }
    }

    async fn has_event(&self, end: &End) -> CaseResult<bool> {
        end.sleep_until_event(&self.channel, 0).await
    }
}

/// Writes a word into the region of the other end, and waits for its completion.
async fn write_word(
    rig: &mut Rig,
    end: &End,
    there: &RemoteRegion,
    offset: u64,
    word: u64,
) -> CaseResult {
    let bytes = word.to_ne_bytes();
    rig.post(WorkRequest::write(&bytes, there.slice(offset, 8)?).signaled(1))?;
    rig.success(end, 1).await?;
    Ok(())
}

/// Watching a region answers what the capabilities say, and a region has one channel.
pub(crate) async fn watching_says_whether_writes_make_events(end: &mut End) -> CaseResult {
    let device = end.device();
    let channels = [device.create_completion_channel()?, device.create_completion_channel()?];
    let region = device.alloc_pd()?.alloc_shared(64, Access::all())?;
    let expected = if device.caps().write_events { Wake::Event } else { Wake::PollOnly };
    for _ in 0..2 {
        ensure_eq!(region.watch(&channels[0])?, expected, "what watching answers");
    }
    if expected == Wake::Event {
        ensure!(region.watch(&channels[1]).is_err(), "a region was watched on two channels");
    }
    region.arm();
    region.disarm();
    let event = end.sleep_until_event(&channels[0], 0).await?;
    ensure!(!event, "an event of nothing");
    end.meet().await
}

/// Each way to change an armed region wakes its owner, over RC and UC.
pub(crate) async fn a_write_into_an_armed_region_wakes_its_owner(end: &mut End) -> CaseResult {
    for ty in [QpType::Rc, QpType::Uc] {
        let mut rig = Rig::connected(end, ty).await?;
        let atomics = end.device().caps().supports(ty, Operation::FetchAdd);
        match end.role() {
            Role::Target => {
                let memory = Watched::new(end, &rig)?;
                rig.qp.post_recvs(0..2)?;
                let last = REGION_BYTES - 8;
                let waits: [(usize, bool); 5] =
                    [(0, true), (last, true), (16, true), (last - 8, true), (32, atomics)];
                for (offset, _) in waits.into_iter().filter(|(_, applies)| *applies) {
                    memory.region.arm();
                    end.meet().await?;
                    memory.sleep_until(end, |region| region.load_u64(offset) != 0).await?;
                    end.meet().await?;
                    memory.region.copy_in(0, &[0; REGION_BYTES]);
                }
            }
            Role::Initiator => {
                let there = discover(end).await?;
                let long = |len| filled(&rig.pd, &vec![7; len]);
                let (whole, most) = (long(REGION_BYTES)?, long(REGION_BYTES - 8)?);
                let mut requests = vec![
                    WorkRequest::write(&[7; 8], there.slice(0, 8)?).signaled(1),
                    WorkRequest::write(whole, there.all()).signaled(1),
                    WorkRequest::write(&[7; 8], there.slice(16, 8)?).imm(1).signaled(1),
                    WorkRequest::write(most, there.slice(0, REGION_BYTES as u64 - 8)?)
                        .imm(2)
                        .signaled(1),
                ];
                if atomics {
                    let add = WorkRequest::fetch_add(room(&rig.pd, 8)?, there.slice(32, 8)?, 7);
                    requests.push(add.signaled(1));
                }
                for request in requests {
                    end.meet().await?;
                    rig.post(request)?;
                    rig.success(end, 1).await?;
                    end.meet().await?;
                }
            }
        }
        rig.serve_until_met(end).await?;
    }
    Ok(())
}

/// What was written before the arm is there when its owner looks, and makes no event.
pub(crate) async fn a_write_before_the_arm_is_found_by_the_look(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let memory = Watched::new(end, &rig)?;
            end.meet().await?;
            memory.region.arm();
            ensure_eq!(memory.region.load_u64(8), 5, "the word");
            ensure!(!memory.has_event(end).await?, "an event of a write before the arm");
        }
        Role::Initiator => {
            let there = discover(end).await?;
            write_word(&mut rig, end, &there, 8, 5).await?;
            end.meet().await?;
        }
    }
    rig.serve_until_met(end).await
}

/// However many writes follow, an arm makes one event, and the next arm another one.
pub(crate) async fn an_arm_makes_one_event(end: &mut End) -> CaseResult {
    const ROUNDS: u64 = 20;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let memory = Watched::new(end, &rig)?;
            for round in 0..ROUNDS {
                memory.region.arm();
                end.meet().await?;
                end.meet().await?;
                let woken = end.sleep_until_event(&memory.channel, SLEEP_NS).await?;
                ensure!(woken, "not woken in round {round}");
                ensure!(!memory.has_event(end).await?, "a second event in round {round}");
                ensure_eq!(memory.region.load_u64(0), 10 * round + 9, "the last word");
            }
        }
        Role::Initiator => {
            let there = discover(end).await?;
            for round in 0..ROUNDS {
                end.meet().await?;
                for write in 0..10 {
                    write_word(&mut rig, end, &there, 0, 10 * round + write).await?;
                }
                end.meet().await?;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// Writes into a region that is not armed, not any more, or not watched make no event.
pub(crate) async fn a_region_that_is_not_armed_wakes_nobody(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let memory = Watched::new(end, &rig)?;
            let unwatched = expose(end, &rig.pd, 64, Access::all())?;
            for what in ["not armed", "disarmed", "armed, and another one is written"] {
                match what {
                    "not armed" => {}
                    "disarmed" => {
                        memory.region.arm();
                        memory.region.disarm();
                    }
                    _ => {
                        memory.region.arm();
                        unwatched.arm();
                    }
                }
                end.meet().await?;
                end.meet().await?;
                ensure!(!memory.has_event(end).await?, "an event of a region: {what}");
            }
            ensure_eq!((memory.region.load_u64(0), unwatched.load_u64(0)), (2, 3), "the words");
        }
        Role::Initiator => {
            let (watched, unwatched) = (discover(end).await?, discover(end).await?);
            for (word, there) in [(1, watched), (2, watched), (3, unwatched)] {
                end.meet().await?;
                write_word(&mut rig, end, &there, 0, word).await?;
                end.meet().await?;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// A READ of an armed region makes no event, nor does what its owner stores there.
pub(crate) async fn reads_and_own_stores_make_no_event(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let memory = Watched::new(end, &rig)?;
            memory.region.arm();
            memory.region.store_release_u64(0, 9);
            end.meet().await?;
            end.meet().await?;
            ensure!(!memory.has_event(end).await?, "an event of a READ");
            end.meet().await?;
            memory.sleep_until(end, |region| region.load_u64(8) == 1).await?;
        }
        Role::Initiator => {
            let there = discover(end).await?;
            end.meet().await?;
            let into = room(&rig.pd, 64)?;
            rig.post(WorkRequest::read(into, there.slice(0, 64)?).signaled(1))?;
            rig.success(end, 1).await?;
            end.meet().await?;
            end.meet().await?;
            write_word(&mut rig, end, &there, 8, 1).await?;
        }
    }
    rig.serve_until_met(end).await
}

/// Two ends that sleep for each other's writes never miss one, however the moments fall.
pub(crate) async fn no_write_is_slept_through(end: &mut End) -> CaseResult {
    const ROUNDS: u64 = 2_000;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let memory = Watched::new(end, &rig)?;
    let there = discover(end).await?;
    end.meet().await?;
    let mut delay = pattern(end.role() as u64 + 1, ROUNDS as usize).into_iter();
    let starts = end.role() == Role::Initiator;
    for round in 1..=ROUNDS {
        for writes in [starts, !starts] {
            if !writes {
                memory.sleep_until(end, |region| region.load_u64(0) >= round).await?;
                continue;
            }
            // Sometimes at once, sometimes when the other end is about to sleep, or sleeps.
            for _ in 0..delay.next().unwrap_or(0) % 8 {
                turn().await;
            }
            write_word(&mut rig, end, &there, 0, round).await?;
        }
    }
    rig.serve_until_met(end).await
}

/// Several queue pairs write into several regions of one channel: no write is slept through.
pub(crate) async fn writers_of_many_regions_wake_one_sleeper(end: &mut End) -> CaseResult {
    const REGIONS: usize = 12; // More than an initiator keeps at hand.
    const ROUNDS: u64 = 60;
    let pd = end.device().alloc_pd()?;
    let mut rigs = Vec::new();
    for ty in [QpType::Rc, QpType::Uc] {
        let mut rig = Rig::within(end.device(), &pd, ty, crate::rig::DEPTH, None)?;
        rig.connect(end).await?;
        rigs.push(rig);
    }
    match end.role() {
        Role::Target => {
            let channel = end.device().create_completion_channel()?;
            let mut regions = Vec::new();
            for _ in 0..REGIONS {
                let region = expose(end, &pd, 64, Access::all())?;
                ensure_eq!(region.watch(&channel)?, Wake::Event, "what watching answers");
                regions.push(region);
            }
            let arrived = |round| {
                let mut words = regions.iter().flat_map(|region| [0, 8].map(|at| (region, at)));
                words.all(|(region, at)| region.load_u64(at) >= round)
            };
            for round in 1..=ROUNDS {
                while !arrived(round) {
                    regions.iter().for_each(SharedRegion::arm);
                    if arrived(round) {
                        break;
                    }
                    let woken = end.sleep_until_event(&channel, SLEEP_NS).await?;
                    ensure!(woken, "a write of round {round} was slept through");
                }
                end.tell(&())?;
            }
        }
        Role::Initiator => {
            let mut there = Vec::new();
            for _ in 0..REGIONS {
                there.push(discover(end).await?);
            }
            for round in 1..=ROUNDS {
                for region in &there {
                    for (rig, offset) in rigs.iter_mut().zip([0, 8]) {
                        write_word(rig, end, region, offset, round).await?;
                    }
                }
                end.hear::<()>().await?;
            }
        }
    }
    rigs[0].serve_until_met(end).await
}
