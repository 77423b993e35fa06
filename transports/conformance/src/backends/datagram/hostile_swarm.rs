//! Peers that send any datagrams in any order, well-formed or not, with and without a session, next to honest clients: these
//! notice nothing, and nothing runs that the server must not run.

use farcall::PollClient;

use super::forge::{
    End, EndSetup, Message, connect, datagram, epoch_of, introduce, kind, message, question,
    request,
};
use crate::{
    dice::Dice,
    hostile::{LIMIT, Latencies, SLOT, serve, setup, terms},
    inspect::Holdings,
    pattern,
    service::{ECHO, SuitePollClient, method_id},
    world::{Server, World},
};

/// Hostile clients at a time.
const PEERS: usize = 3;

/// What each of them does, in turn, while the honest client calls once.
const ROUNDS: usize = 400;

/// Of the server, and of the peer that asks for memory.
const WINDOW: u32 = 64;

/// Of the others.
const SMALL_WINDOW: u32 = 8;

/// What requests count their executions under that may run once.
const ALLOWED: u8 = 77;

/// The same for those that must not run: no bytes that change on the way make this number of another.
const FORBIDDEN: u64 = 741_813;
const FORBIDDEN_BYTES: [u8; 3] = [0xb5, 0xa3, 0x2d];

/// Datagrams that a peer keeps to send again.
const CAPTURED: usize = 32;

/// Clients that send anything, leave and come back.
pub(super) fn clients_that_send_anything_disturb_nobody(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut swarm = Swarm { dice: world.dice(), most_runs: 0, former: Vec::new() };
    let alone = Latencies::of_calls(world, &mut honest, ROUNDS, || {});
    let before = world.settled_holdings(&server);
    let mut peers: [Option<Peer>; PEERS] = [const { None }; PEERS];
    let attacked = Latencies::of_calls(world, &mut honest, ROUNDS, || {
        for (number, peer) in peers.iter_mut().enumerate() {
            if !peer.as_mut().is_some_and(|peer| peer.act(&mut swarm)) {
                *peer = Some(Peer::connect(world, &server, number == 0, &mut swarm));
            }
        }
    });
    attacked.assert_like(&alone, world);
    let mut tallied = |id| world.call(&mut honest, |c| c.start_tallied(id)).expect("tallied");
    assert_eq!(tallied(FORBIDDEN), 0, "a request ran that is not its sender's to send");
    let ran = tallied(ALLOWED.into());
    assert!(ran <= swarm.most_runs, "{ran} executions of {} requests", swarm.most_runs);
    drop(peers);
    world.wait_holdings(&server, &with_memory(before));
}

/// What a server holds that has used all of its memory for large messages: it keeps that for others, registered in pieces.
fn with_memory(before: Holdings) -> Holdings {
    const LEAST_PIECE: u64 = 256 << 10;
    let pieces = setup(WINDOW).memory.unwrap_or(0).div_ceil(LEAST_PIECE) as usize;
    Holdings {
        regions: before.regions + pieces,
        // On the device `shm`, each region is a file that is mapped.
        descriptors: before.descriptors + pieces,
        shared_mappings: before.shared_mappings + pieces,
        ..before
    }
}

/// What the peers know of each other.
struct Swarm {
    dice: Dice,
    /// Requests that may run.
    most_runs: u64,
    /// Sessions that have ended, and what their datagrams carried.
    former: Vec<(EndSetup, u64)>,
}

impl Swarm {
    /// One of so many.
    fn pick(&mut self, count: usize) -> usize {
        self.dice.below(count as u64) as usize
    }

    /// At most so many bytes.
    fn any_bytes(&mut self, most: u64) -> Vec<u8> {
        pattern::make(self.dice.roll(), self.dice.below(most + 1) as usize)
    }

    fn is_once_in(&mut self, times: u64) -> bool {
        self.dice.below(times) == 0
    }
}

/// A hostile client.
struct Peer {
    end: End,
    /// It asks for as much memory as it can.
    is_greedy: bool,
    /// It knows what its datagrams must carry: the server serves it.
    is_served: bool,
    /// Of its last request in each slot.
    generations: Vec<u32>,
    /// What it has sent, as the rules are.
    captured: Vec<Vec<u8>>,
    /// What it was sent.
    heard: Vec<Message>,
}

impl Peer {
    fn connect(world: &World, server: &Server, is_greedy: bool, swarm: &mut Swarm) -> Peer {
        let to = world.raw_connection(server);
        let window = if is_greedy { WINDOW } else { SMALL_WINDOW };
        let wanted = terms(window, SLOT, LIMIT);
        let is_served = is_greedy || !swarm.is_once_in(3);
        let shake = if is_served { connect } else { introduce };
        let end = shake(to, SuitePollClient::DESCRIPTION, wanted).expect("welcome");
        let generations = vec![0; window as usize];
        let (captured, heard) = (Vec::new(), Vec::new());
        let mut peer = Peer { end, is_greedy, is_served, generations, captured, heard };
        // What was sent in an earlier session of that number, by now from another queue pair.
        for _ in 0..swarm.dice.below(4) {
            peer.replay_former(swarm);
        }
        peer
    }

    /// Sends something. `false`: it leaves.
    fn act(&mut self, swarm: &mut Swarm) -> bool {
        if self.is_greedy && !swarm.is_once_in(4) {
            return self.ask_for_memory(swarm);
        }
        for _ in 0..=swarm.dice.below(4) {
            match swarm.dice.below(20) {
                0..=3 => self.send_request(swarm),
                4..=6 => self.send_messages(swarm),
                7 => {
                    let bytes = swarm.any_bytes(self.end.theirs.mtu.into());
                    self.end.post_raw(&bytes);
                }
                8..=9 => self.send_again(swarm),
                10..=11 => self.send_under_other_names(swarm),
                12 => self.send_from_elsewhere(swarm),
                13 => self.replay_former(swarm),
                14 => {
                    let outside = self.end.terms.window + swarm.dice.below(1 << 16) as u32;
                    let slot = outside.min(u16::MAX.into()) as u16;
                    let bytes = self.end.datagram(&forbidden(kind::REQUEST, slot, 1));
                    self.end.post_raw(&bytes);
                }
                15..=16 => self.answer(swarm),
                17..=18 => self.send_large(swarm),
                _ if self.is_greedy => {}
                _ => return self.leave(swarm),
            }
        }
        true
    }

    fn slot(&self, swarm: &mut Swarm) -> u16 {
        swarm.pick(self.generations.len()) as u16
    }

    /// The generation of the next request in a slot, mostly.
    fn next_generation(&mut self, slot: u16, swarm: &mut Swarm) -> u32 {
        let generation = &mut self.generations[usize::from(slot)];
        *generation = generation.wrapping_add(1 + u32::from(swarm.is_once_in(8)));
        *generation
    }

    /// A request as the rules are, up to three times; the slot may not be free. Of a peer that is not served yet it must not
    /// run.
    fn send_request(&mut self, swarm: &mut Swarm) {
        let slot = self.slot(swarm);
        let generation = self.next_generation(slot, swarm);
        let what = [kind::REQUEST, kind::IDEMPOTENT][swarm.pick(2)];
        let messages = match swarm.dice.below(4) {
            _ if !self.is_served => forbidden(what, slot, generation),
            0 => {
                swarm.most_runs += 1;
                request(slot, generation, method_id("hold"), &[ALLOWED, 1])
            }
            1 => request(slot, generation, ECHO, &swarm.any_bytes(64)),
            _ => {
                swarm.most_runs += 1;
                tally(what, slot, generation, &[ALLOWED])
            }
        };
        let bytes = self.end.datagram(&messages);
        for _ in 0..=swarm.dice.below(3) {
            self.end.post_raw(&bytes);
        }
        self.capture(bytes, swarm);
    }

    fn capture(&mut self, bytes: Vec<u8>, swarm: &mut Swarm) {
        match self.captured.len() {
            CAPTURED => self.captured[swarm.pick(CAPTURED)] = bytes,
            _ => self.captured.push(bytes),
        }
    }

    /// A message of any kind, with a body of its kind or with any.
    fn any_message(&mut self, swarm: &mut Swarm) -> Vec<u8> {
        let slot = match swarm.is_once_in(8) {
            true => swarm.dice.below(1 << 16) as u16,
            false => self.slot(swarm),
        };
        let last = self.generations.get(usize::from(slot)).copied().unwrap_or(1);
        let generation = match swarm.dice.below(8) {
            0 => swarm.dice.roll() as u32,
            ahead => last.wrapping_add(ahead as u32 / 3).wrapping_sub(1),
        };
        let (what, body) = match swarm.dice.below(6) {
            0 => (kind::ANNOUNCE, swarm.dice.below(1 << 16).to_le_bytes().to_vec()),
            1 => {
                let number = swarm.dice.below(20) as u32;
                (kind::PART, [&number.to_le_bytes()[..], &swarm.any_bytes(300)].concat())
            }
            2 => {
                let (base, mask) = (swarm.dice.below(300) as u32, swarm.dice.roll());
                (kind::ASK, [&base.to_le_bytes()[..], &mask.to_le_bytes()].concat())
            }
            3 => ([kind::ASK, kind::CANCEL, kind::RELEASE][swarm.pick(3)], Vec::new()),
            _ => (swarm.dice.below(u64::from(kind::LAST) + 3) as u8, swarm.any_bytes(40)),
        };
        // Of all kinds, this one ends the session at once.
        let what = if what == kind::GOODBYE && !swarm.is_once_in(8) { kind::ASK } else { what };
        message(what, slot, generation, &body)
    }

    /// A datagram of some messages, whole or with bytes changed, removed and inserted.
    fn send_messages(&mut self, swarm: &mut Swarm) {
        let messages: Vec<_> =
            (0..=swarm.dice.below(5)).flat_map(|_| self.any_message(swarm)).collect();
        let mut bytes = self.end.datagram(&messages);
        bytes.truncate(self.end.theirs.mtu as usize);
        for _ in 0..swarm.dice.below(6).saturating_sub(2) {
            if bytes.is_empty() {
                break;
            }
            let at = swarm.pick(bytes.len());
            match swarm.dice.below(4) {
                0 => bytes.truncate(at),
                1 if bytes.len() < self.end.theirs.mtu as usize => bytes.insert(at, 0xff),
                2 => drop(bytes.remove(at)),
                _ => bytes[at] ^= 1 << swarm.dice.below(8),
            }
        }
        self.end.post_raw(&bytes);
    }

    /// What it has sent before, from its own queue pair or from another of its device.
    fn send_again(&mut self, swarm: &mut Swarm) {
        if self.captured.is_empty() {
            return;
        }
        let bytes = self.captured[swarm.pick(self.captured.len())].clone();
        match swarm.is_once_in(4) {
            true => {
                let to = &self.end.theirs;
                self.end.other_sender().send(to, to.qkey, &bytes, &*self.end.clock);
            }
            false => self.end.post_raw(&bytes),
        }
    }

    /// A request in a session that it does not have, or with what its datagrams do not carry.
    fn send_under_other_names(&mut self, swarm: &mut Swarm) {
        let theirs = &self.end.theirs;
        let slot = swarm.pick(self.generations.len()) as u16;
        let messages = match swarm.is_once_in(4) {
            true => message(kind::GOODBYE, 0, 0, &[]),
            false => forbidden(kind::REQUEST, slot, self.generations[usize::from(slot)] + 1),
        };
        // What the handshake told is right only for a question.
        let wrong = [0, 1, theirs.epoch, self.end.epoch ^ 1, !self.end.epoch, swarm.dice.roll()];
        let (session, epoch, qkey) = match swarm.dice.below(4) {
            0 => {
                let other = theirs.session ^ (1 + swarm.dice.below(15) as u32);
                (other, self.end.epoch, theirs.qkey)
            }
            1 => (theirs.session, self.end.epoch, theirs.qkey ^ (1 << swarm.dice.below(31))),
            _ => (theirs.session, wrong[swarm.pick(wrong.len())], theirs.qkey),
        };
        let bytes = datagram(session, epoch, &messages);
        self.end.pair.post(&self.end.theirs, qkey, &bytes, &*self.end.clock);
    }

    /// The same with all that is right, from another queue pair.
    fn send_from_elsewhere(&mut self, swarm: &mut Swarm) {
        let slot = self.slot(swarm);
        let generation = self.generations[usize::from(slot)].wrapping_add(1);
        let messages = [
            forbidden(kind::REQUEST, slot, generation),
            message(kind::CANCEL, slot, generation, &[]),
            message(kind::GOODBYE, 0, 0, &[]),
        ];
        let bytes = self.end.datagram(&messages[swarm.pick(messages.len())]);
        let to = &self.end.theirs;
        self.end.other_sender().send(to, to.qkey, &bytes, &*self.end.clock);
    }

    /// A request with what datagrams of an ended session carried, to that session or to its own.
    fn replay_former(&mut self, swarm: &mut Swarm) {
        if swarm.former.is_empty() {
            return;
        }
        let which = swarm.pick(swarm.former.len());
        let (theirs, epoch) = swarm.former[which].clone();
        let slot = self.slot(swarm);
        let generation = self.generations[usize::from(slot)].wrapping_add(1);
        let number = [theirs.session, self.end.theirs.session][swarm.pick(2)];
        let bytes = datagram(number, epoch, &forbidden(kind::REQUEST, slot, generation));
        self.end.post_raw(&bytes);
    }

    /// Sends back what the server has sent, or the answer that it waits for.
    fn answer(&mut self, swarm: &mut Swarm) {
        self.heard.extend(self.end.pair.take_received());
        if !self.is_served
            && let Some(challenge) = self.heard.iter().find(|heard| heard.kind == kind::CHALLENGE)
        {
            self.end.epoch = epoch_of(challenge);
            self.is_served = true;
            // They have the wrong epoch, and would be right with this one.
            self.captured.clear();
        }
        if !self.is_served && swarm.is_once_in(2) {
            let bytes = self.end.datagram(&question());
            return self.end.post_raw(&bytes);
        }
        for Message { kind, slot, generation, body } in self.heard.drain(..) {
            if kind != kind::GOODBYE && swarm.dice.below(4) == 0 {
                let bytes = self.end.datagram(&message(kind, slot, generation, &body));
                self.end.post_raw(&bytes);
            }
        }
    }

    /// A large request, with some of its parts; or a request for a large response, which is fetched or not.
    fn send_large(&mut self, swarm: &mut Swarm) {
        let slot = self.slot(swarm);
        let generation = self.next_generation(slot, swarm);
        if swarm.is_once_in(2) {
            // Seed 1, 40,960 bytes.
            let large = request(slot, generation, method_id("make"), &[1, 0x80, 0xc0, 0x02]);
            let ask =
                message(kind::ASK, slot, generation, &[[0; 4].as_slice(), &[0xff; 8]].concat());
            for messages in [large, ask] {
                let bytes = self.end.datagram(&messages);
                self.end.post_raw(&bytes);
            }
            return;
        }
        let len = 2_000 + swarm.dice.below(20_000);
        let whole =
            [&ECHO.to_le_bytes()[..], &[0; 4], &pattern::make(1, len as usize - 8)].concat();
        let announced = message(kind::ANNOUNCE, slot, generation, &len.to_le_bytes());
        let bytes = self.end.datagram(&announced);
        self.end.post_raw(&bytes);
        for (number, part) in (0_u32..).zip(whole.chunks(self.end.theirs.mtu as usize - 30)) {
            if swarm.is_once_in(3) {
                continue;
            }
            let body = [&number.to_le_bytes()[..], part].concat();
            let bytes = self.end.datagram(&message(kind::PART, slot, generation, &body));
            self.end.post_raw(&bytes);
        }
    }

    /// Announces the longest messages, and sends no part of them.
    fn ask_for_memory(&mut self, swarm: &mut Swarm) -> bool {
        let slot = self.slot(swarm);
        let generation = self.next_generation(slot, swarm);
        let len = LIMIT + u64::from(swarm.is_once_in(8));
        let bytes =
            self.end.datagram(&message(kind::ANNOUNCE, slot, generation, &len.to_le_bytes()));
        self.end.post_raw(&bytes);
        true
    }

    /// With a goodbye, or without one.
    fn leave(&mut self, swarm: &mut Swarm) -> bool {
        if swarm.is_once_in(2) {
            let bytes = self.end.datagram(&message(kind::GOODBYE, 0, 0, &[]));
            self.end.post_raw(&bytes);
        }
        swarm.former.push((self.end.theirs.clone(), self.end.epoch));
        false
    }
}

/// A request that counts its executions.
fn tally(what: u8, slot: u16, generation: u32, id: &[u8]) -> Vec<u8> {
    let request = request(slot, generation, method_id("tally"), id);
    [&[what], &request[1..]].concat()
}

/// A request that must not run.
fn forbidden(what: u8, slot: u16, generation: u32) -> Vec<u8> {
    tally(what, slot, generation, &FORBIDDEN_BYTES)
}
