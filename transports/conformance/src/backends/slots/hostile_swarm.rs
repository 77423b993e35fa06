//! Peers that send anything, well-formed or not, in any order, beside honest clients: these notice nothing.

use farcall::PollClient;

use super::forge::{Carrier, End, connect, kind, message, op, request, stride, wire_region};
use super::hostile_clients::WINDOW;
use crate::{
    dice::Dice,
    hostile::{LIMIT, Latencies, SLOT, serve, terms},
    pattern,
    service::{ECHO, SuitePollClient, method_id},
    world::{Server, World},
};

/// Hostile clients at a time.
const PEERS: usize = 3;

/// What each of them does, in turn, while the honest clients call once.
const ROUNDS: usize = 400;

/// Clients that send anything, leave and come back.
pub(crate) fn clients_that_send_anything_disturb_nobody(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut dice = world.dice();
    let alone = Latencies::of_calls(world, &mut honest, ROUNDS, || {});
    let before = world.settled_holdings(&server);
    let mut peers: [Option<Peer>; PEERS] = [const { None }; PEERS];
    let attacked = Latencies::of_calls(world, &mut honest, ROUNDS, || {
        for peer in &mut peers {
            if !peer.as_mut().is_some_and(|peer| peer.act(&mut dice)) {
                *peer = Some(Peer::connect(world, &server));
            }
        }
    });
    attacked.assert_like(&alone, world);
    drop(peers);
    world.wait_holdings(&server, &before);
}

/// A hostile client.
struct Peer {
    end: End,
    /// Of its last request in each slot.
    generations: [u32; WINDOW as usize],
}

impl Peer {
    fn connect(world: &World, server: &Server) -> Peer {
        let to = world.raw_connection(server);
        let wanted = terms(WINDOW, SLOT, LIMIT);
        let end = connect(Carrier::of(world), to, SuitePollClient::DESCRIPTION, wanted);
        Peer { end: end.expect("welcome"), generations: [0; WINDOW as usize] }
    }

    /// Does something. `false`: it has left, or was dropped.
    fn act(&mut self, dice: &mut Dice) -> bool {
        let slot = dice.below(WINDOW.into()) as u32;
        match dice.below(16) {
            0..=4 => {
                let bytes = self.any_request(slot, dice);
                self.end.send(slot, &bytes)
            }
            5..=7 => {
                let bytes = self.any_message(slot, dice);
                self.end.send(slot, &bytes)
            }
            8 => {
                let bytes = any_bytes(dice, 2 * u64::from(SLOT));
                self.end.send(slot, &bytes)
            }
            9..=10 => {
                let slot = if dice.below(2) == 0 { slot } else { dice.below(1 << 10) as u32 };
                self.end.operate(dice.below(8) as u32, slot)
            }
            11 => {
                let imm = dice.roll() as u32;
                let bytes = self.any_message(slot, dice);
                self.end.send_as(imm, slot, &bytes)
            }
            12..=13 => self.write_anywhere(dice),
            14 if Carrier::is_of_logs(&self.end) => {
                let bits = 1 + dice.below(40);
                self.end.grow(&dice.below(1 << bits).to_le_bytes())
            }
            14 => !self.end.has_failed(),
            _ => {
                if dice.below(2) == 0 {
                    self.end.operate(op::GOODBYE, 0);
                }
                false
            }
        }
    }

    /// A request as the rules are, mostly: its slot may not be free.
    fn any_request(&mut self, slot: u32, dice: &mut Dice) -> Vec<u8> {
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1 + u32::from(dice.below(8) == 0));
        let method = match dice.below(4) {
            0 => dice.roll() as u32,
            1 => method_id("hold"),
            _ => ECHO,
        };
        request(*generation, method, &any_bytes(dice, 64))
    }

    /// A message of any kind, with a body of its kind or with any.
    fn any_message(&mut self, slot: u32, dice: &mut Dice) -> Vec<u8> {
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(dice.below(3) as u32);
        let generation = *generation;
        let len = match dice.below(4) {
            0 => LIMIT + dice.below(3) - 1,
            1 => dice.roll(),
            _ => dice.below(1 << 16),
        };
        let theirs = self.end.theirs;
        match dice.below(5) {
            0 => message(generation, kind::ANNOUNCE, &len.to_le_bytes()),
            1 => message(generation, kind::GRANT, &wire_region(dice.roll(), len, theirs.rkey)),
            2 => {
                let at = theirs.addr.wrapping_add(dice.below(theirs.len + 64));
                message(generation, kind::LENT, &wire_region(at, len, dice.roll() as u32))
            }
            _ => message(generation, dice.below(8) as u8, &any_bytes(dice, 32)),
        }
    }

    /// WRITEs into its own part of the server's memory, or a little beside it.
    fn write_anywhere(&mut self, dice: &mut Dice) -> bool {
        let theirs = self.end.theirs;
        let at = match dice.below(8) {
            0 => dice.roll(),
            // The trailer of a cell.
            1..=3 => u64::from(stride(SLOT)) * (1 + dice.below(WINDOW.into())) - 8,
            _ => dice.below(theirs.len.max(1) + 16),
        };
        let rkey = if dice.below(16) == 0 { dice.roll() as u32 } else { theirs.rkey };
        let imm = (dice.below(2) == 0).then(|| dice.roll() as u32);
        let bytes = any_bytes(dice, 64);
        self.end.write(theirs.addr.wrapping_add(at), rkey, &bytes, imm)
    }
}

/// At most so many bytes.
fn any_bytes(dice: &mut Dice, most: u64) -> Vec<u8> {
    pattern::make(dice.roll(), dice.below(most + 1) as usize)
}
