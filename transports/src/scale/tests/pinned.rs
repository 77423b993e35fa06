//! Clients that are pinned to every slice, among busy ones that are groups of their own.

use super::super::{GROUP, PINNED, PINS, SLICE, Scale};
use crate::contract::Config;
use crate::slots::tests::pair::{Caller, Host, TURN_NANOS, limits};

/// A slice in turns of the server.
const SLICE_TURNS: u32 = 100_000 / TURN_NANOS as u32;

fn server() -> Config {
    let mut config = limits(4, 4096, 1 << 20);
    config.options.set(&GROUP, "1");
    config.options.set(&SLICE, "100us");
    config.options.set(&PINS, "1");
    config
}

fn pinned() -> Config {
    let mut config = limits(4, 4096, 1 << 20);
    config.options.set(&PINNED, "yes");
    config
}

/// The longest of some calls, while others always have a call outstanding.
fn longest_call(host: &mut Host, caller: &mut Caller, busy: &mut [Caller]) -> u32 {
    let mut longest = 0;
    for _ in 0..20 {
        caller.send(b"now");
        let mut turns = 0;
        while caller.heard.replies.pop_front().is_none() {
            host.poll();
            caller.poll(host.now);
            for other in busy.iter_mut() {
                other.poll(host.now);
                if other.heard.replies.pop_front().is_some() {
                    other.send(b"busy");
                }
            }
            turns += 1;
            assert!(turns < 100 * SLICE_TURNS, "it is never answered");
        }
        longest = longest.max(turns);
    }
    longest
}

fn start_busy(host: &mut Host) -> Vec<Caller> {
    let mut busy: Vec<_> = (0..4).map(|_| host.admit()).collect();
    for other in &mut busy {
        other.send(b"busy");
    }
    busy
}

#[test]
fn a_pinned_client_is_served_in_every_slice_and_others_wait_for_theirs() {
    let mut host = Host::new(&Scale, server());
    let mut busy = start_busy(&mut host);
    let mut pinned = host.admit_with(&pinned());
    let longest = longest_call(&mut host, &mut pinned, &mut busy);
    assert!(longest < SLICE_TURNS / 4, "{longest} turns");
    let mut other = host.admit();
    let longest = longest_call(&mut host, &mut other, &mut busy);
    assert!(longest > SLICE_TURNS, "{longest} turns");
}

#[test]
fn one_that_is_too_many_is_served_as_others_until_another_has_gone() {
    let mut host = Host::new(&Scale, server());
    let mut busy = start_busy(&mut host);
    let mut first = host.admit_with(&pinned());
    longest_call(&mut host, &mut first, &mut busy);
    let mut second = host.admit_with(&pinned());
    let longest = longest_call(&mut host, &mut second, &mut busy);
    assert!(longest > SLICE_TURNS, "{longest} turns");
    drop(first);
    host.run(&mut [&mut second], |host, _| host.transport.connections() == busy.len() + 1);
    let mut third = host.admit_with(&pinned());
    let longest = longest_call(&mut host, &mut third, &mut busy);
    assert!(longest < SLICE_TURNS / 4, "{longest} turns");
}

#[test]
fn pinned_clients_keep_their_places_while_groups_come_and_go() {
    let mut host = Host::new(&Scale, server());
    let mut pinned = host.admit_with(&pinned());
    for round in 0..40u32 {
        let mut goes = host.admit();
        let mut stays = host.admit();
        for caller in [&mut goes, &mut stays] {
            assert_eq!(host.call(caller, b"in a slice"), b"in a slice");
            assert_eq!(host.call(&mut pinned, &round.to_le_bytes()), round.to_le_bytes());
        }
        drop(goes);
        pinned.send(b"across");
        host.run(&mut [&mut pinned, &mut stays], |host, callers| {
            host.transport.connections() == 2 && callers[0].heard.replies.pop_front().is_some()
        });
        drop(stays);
        host.run(&mut [&mut pinned], |host, _| host.transport.connections() == 1);
    }
}
