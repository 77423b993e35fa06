//! Peers that write any frames and any bytes, cut anywhere, next to honest clients: these get right answers, and nothing runs
//! that was sent after a broken rule.
//!
//! They write to real sockets, so time is real: how long calls take is not compared, but each has the case's bound.

use farcall::PollClient;

use super::forge::{End, PART_BYTES, begin, call, connect, frame, kind, request};
use crate::{
    dice::Dice,
    hostile::{LIMIT, Latencies, SLOT, serve, terms},
    pattern,
    service::{ECHO, SuitePollClient, method_id},
    world::{Server, World},
};

const WINDOW: u32 = 8;

/// Hostile clients at a time.
const PEERS: usize = 3;

/// What each of them does, in turn, while the honest client calls once.
const ROUNDS: usize = 400;

/// What requests count their executions under that may run once.
const ALLOWED: u8 = 77;

/// The same for those that must not run: no bytes that are cut make this number of another.
const FORBIDDEN: u64 = 741_813;
const FORBIDDEN_BYTES: [u8; 3] = [0xb5, 0xa3, 0x2d];

/// A peer that does not read sends no more than this: it would wait for the server, which waits for it.
const MOST_BYTES: usize = 128 << 10;

/// Clients that send anything, leave and come back.
pub(super) fn clients_that_send_anything_disturb_nobody(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut swarm = Swarm { dice: world.dice(), most_runs: 0 };
    // The server has had a connection of each kind, and memory for large messages.
    let _ = Latencies::of_calls(world, &mut honest, ROUNDS / 10, || {});
    let before = world.settled_holdings(&server);
    let mut peers: [Option<Peer>; PEERS] = [const { None }; PEERS];
    let _ = Latencies::of_calls(world, &mut honest, ROUNDS, || {
        for peer in &mut peers {
            if !peer.as_mut().is_some_and(|peer| peer.act(&mut swarm)) {
                *peer = Some(Peer::connect(world, &server));
            }
        }
    });
    drop(peers);
    world.wait_holdings(&server, &before);
    let mut tallied = |id| world.call(&mut honest, |c| c.start_tallied(id)).expect("tallied");
    assert_eq!(tallied(FORBIDDEN), 0, "a request ran that came after a broken rule");
    let ran = tallied(ALLOWED.into());
    assert!(ran <= swarm.most_runs, "{ran} executions of {} requests", swarm.most_runs);
}

/// What the peers have in common.
struct Swarm {
    dice: Dice,
    /// Requests that may run.
    most_runs: u64,
}

impl Swarm {
    fn is_once_in(&mut self, times: u64) -> bool {
        self.dice.below(times) == 0
    }

    /// At most so many bytes.
    fn any_bytes(&mut self, most: u64) -> Vec<u8> {
        pattern::make(self.dice.roll(), self.dice.below(most + 1) as usize)
    }
}

/// A hostile client.
struct Peer {
    end: End,
    /// Of its last request in each slot.
    generations: [u32; WINDOW as usize],
    sent: usize,
    /// It has broken a rule: what follows must not run.
    is_broken: bool,
    /// It has sent a part of a frame: the rest is in what follows, which is a frame of its own or not, and may run or not.
    is_cut: bool,
}

impl Peer {
    fn connect(world: &World, server: &Server) -> Peer {
        let to = world.raw_connection(server);
        let wanted = terms(WINDOW, SLOT, LIMIT);
        let end = connect(to, SuitePollClient::DESCRIPTION, wanted).expect("welcome");
        Peer { end, generations: [0; WINDOW as usize], sent: 0, is_broken: false, is_cut: false }
    }

    /// Sends something. `false`: it leaves, or was dropped.
    fn act(&mut self, swarm: &mut Swarm) -> bool {
        let bytes = match swarm.dice.below(16) {
            0..=5 => self.any_request(swarm),
            6..=8 => self.any_frame(swarm),
            9..=10 => self.large(swarm),
            11 => self.broken(swarm),
            12 => {
                let mut bytes = self.any_request(swarm);
                bytes.truncate(1 + swarm.dice.below(bytes.len() as u64 - 1) as usize);
                self.is_cut |= !self.is_broken;
                bytes
            }
            13 => {
                let bytes = swarm.any_bytes(2 * u64::from(SLOT));
                self.is_broken |= !bytes.is_empty();
                bytes
            }
            14 => {
                self.end.close_half();
                return false;
            }
            _ if swarm.is_once_in(2) => frame(kind::GOODBYE, 0, 0, &[]),
            _ => return false,
        };
        self.send(&bytes, swarm)
    }

    /// Writes the bytes at once, in two pieces, or byte by byte.
    fn send(&mut self, bytes: &[u8], swarm: &mut Swarm) -> bool {
        self.sent += bytes.len();
        if self.sent > MOST_BYTES {
            return false;
        }
        match swarm.dice.below(4) {
            0 if bytes.len() < 200 => self.end.trickle(bytes),
            1 => {
                let (front, back) =
                    bytes.split_at(swarm.dice.below(bytes.len() as u64 + 1) as usize);
                self.end.send(front) && self.end.send(back)
            }
            _ => self.end.send(bytes),
        }
    }

    fn slot(&self, swarm: &mut Swarm) -> u16 {
        swarm.dice.below(WINDOW.into()) as u16
    }

    fn next_generation(&mut self, slot: u16, swarm: &mut Swarm) -> u32 {
        let generation = &mut self.generations[usize::from(slot)];
        *generation = generation.wrapping_add(1 + u32::from(swarm.is_once_in(8)));
        *generation
    }

    /// What a request counts its executions under that comes after a broken rule.
    fn late_id(&self, swarm: &mut Swarm) -> &'static [u8] {
        if self.is_cut {
            // The broken rule may have been in the rest of a frame.
            swarm.most_runs += 1;
            &[ALLOWED]
        } else {
            &FORBIDDEN_BYTES
        }
    }

    /// A request as the rules are, mostly: its slot may not be free.
    fn any_request(&mut self, swarm: &mut Swarm) -> Vec<u8> {
        let slot = self.slot(swarm);
        let generation = self.next_generation(slot, swarm);
        if self.is_broken {
            return request(slot, generation, method_id("tally"), self.late_id(swarm));
        }
        match swarm.dice.below(4) {
            0 => {
                swarm.most_runs += 1;
                request(slot, generation, method_id("hold"), &[ALLOWED, 1])
            }
            1 => request(slot, generation, ECHO, &swarm.any_bytes(64)),
            2 => request(slot, generation, swarm.dice.roll() as u32, &swarm.any_bytes(64)),
            _ => {
                swarm.most_runs += 1;
                request(slot, generation, method_id("tally"), &[ALLOWED])
            }
        }
    }

    /// A frame of any kind, with a body of its kind or with any.
    fn any_frame(&mut self, swarm: &mut Swarm) -> Vec<u8> {
        let slot = self.slot(swarm);
        let generation =
            self.generations[usize::from(slot)].wrapping_add(swarm.dice.below(2) as u32);
        match swarm.dice.below(6) {
            0 => {
                let len = [0, 1, LIMIT, LIMIT + 1, u64::MAX][swarm.dice.below(5) as usize];
                begin(slot, generation, len)
            }
            1 => frame(kind::CANCEL, slot, generation, &[]),
            2 => frame(kind::GRANT, slot, generation, &[]),
            3 => frame(kind::PART, slot, generation, &swarm.any_bytes(300)),
            _ => frame(swarm.dice.below(9) as u8, slot, generation, &swarm.any_bytes(32)),
        }
    }

    /// A large request of which some parts come, without waiting for the grant; or a request for a large response, which is granted
    /// or not.
    fn large(&mut self, swarm: &mut Swarm) -> Vec<u8> {
        let slot = self.slot(swarm);
        let generation = self.next_generation(slot, swarm);
        if swarm.is_once_in(2) {
            // Seed 1, 40,960 bytes.
            let mut bytes = request(slot, generation, method_id("make"), &[1, 0x80, 0xc0, 0x02]);
            if swarm.is_once_in(2) {
                bytes.extend(frame(kind::GRANT, slot, generation, &[]));
            }
            return bytes;
        }
        let whole = call(ECHO, &pattern::make(1, 2_000 + swarm.dice.below(20_000) as usize));
        let mut bytes = begin(slot, generation, whole.len() as u64);
        if swarm.is_once_in(2) {
            let most = 1 + swarm.dice.below(PART_BYTES as u64 / 8) as usize;
            for part in whole.chunks(most).take(1 + swarm.dice.below(4) as usize) {
                bytes.extend(frame(kind::PART, slot, generation, part));
            }
        }
        bytes
    }

    /// A frame that breaks a rule for certain, and a request behind it.
    fn broken(&mut self, swarm: &mut Swarm) -> Vec<u8> {
        self.is_broken = true;
        let outside = WINDOW as u16 + swarm.dice.below(1 << 8) as u16;
        let longest = vec![7; SLOT as usize + 1];
        let mut bytes = match swarm.dice.below(4) {
            0 => frame(8 + swarm.dice.below(200) as u8, 0, 1, &[]),
            1 => request(outside, 1, method_id("tally"), self.late_id(swarm)),
            2 => frame(kind::WHOLE, 0, 1, &longest),
            _ => frame(kind::DROPPED, 0, 1, &[]),
        };
        bytes.extend(request(0, u32::MAX / 2, method_id("tally"), self.late_id(swarm)));
        bytes
    }
}
