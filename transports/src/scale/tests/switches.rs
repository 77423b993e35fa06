//! Clients that are groups of their own, and slices of one turn: places change hands all the time.

use super::super::{GROUP, SLICE, Scale};
use crate::contract::Config;
use crate::slots::tests::pair::{Caller, Host, limits};

fn restless() -> Config {
    let mut config = limits(4, 4096, 1 << 20);
    config.options.set(&GROUP, "1");
    config.options.set(&SLICE, "1us");
    config
}

fn have_replies(callers: &[&mut Caller], count: usize) -> bool {
    callers.iter().all(|caller| caller.heard.replies.len() == count)
}

#[test]
fn each_request_is_answered_once_however_often_the_groups_are_switched() {
    let mut host = Host::new(&Scale, restless());
    let mut callers: Vec<_> = (0..5).map(|_| host.admit()).collect();
    for round in 0..300u32 {
        let before = host.handlers.requests;
        let window = 1 + round as usize % 4;
        for (who, caller) in callers.iter_mut().enumerate() {
            for call in 0..window {
                // Some fill a page of the log, or go into it with others.
                let len = if round % 7 == 3 { 1500 } else { 40 };
                let mut message = vec![who as u8; len];
                message[..4].copy_from_slice(&(round * 4 + call as u32).to_le_bytes());
                caller.send(&message);
            }
        }
        let mut all: Vec<_> = callers.iter_mut().collect();
        host.run(&mut all, |_, callers| have_replies(callers, window));
        assert_eq!(host.handlers.requests - before, 5 * window);
        for (who, caller) in callers.iter_mut().enumerate() {
            let mut numbers: Vec<_> = caller
                .heard
                .replies
                .drain(..)
                .map(|(_, reply)| {
                    assert!(reply[4..].iter().all(|byte| *byte == who as u8));
                    u32::from_le_bytes(*reply.first_chunk().unwrap())
                })
                .collect();
            numbers.sort_unstable();
            let wanted: Vec<_> = (0..window as u32).map(|call| round * 4 + call).collect();
            assert_eq!(numbers, wanted);
        }
    }
}

#[test]
fn a_client_that_keeps_its_place_does_not_hold_up_others() {
    let mut host = Host::new(&Scale, restless());
    let mut silent: Vec<_> = (0..2).map(|_| host.admit()).collect();
    // They have a place each, all that there are, and do not look any more.
    for caller in &mut silent {
        host.call(caller, b"first");
    }
    let mut others: Vec<_> = (0..2).map(|_| host.admit()).collect();
    for _ in 0..50 {
        for caller in &mut others {
            assert_eq!(host.call(caller, b"served out of the log"), b"served out of the log");
        }
    }
    assert_eq!(host.transport.connections(), 4);
    // When they look again they are served as before.
    for caller in &mut silent {
        assert_eq!(host.call(caller, b"back"), b"back");
    }
}

#[test]
fn places_of_clients_that_vanish_are_free_again() {
    let mut host = Host::new(&Scale, restless());
    let mut stays = host.admit();
    for _ in 0..20 {
        let mut goes = host.admit();
        host.call(&mut goes, b"first");
        host.call(&mut stays, b"and");
        goes.send(b"never answered");
        drop(goes);
        host.run(&mut [&mut stays], |host, _| host.transport.connections() == 1);
    }
    assert_eq!(host.call(&mut stays, b"last"), b"last");
}

#[test]
fn a_place_that_becomes_free_goes_to_a_client_that_found_none() {
    // So large that the pool has one place.
    let mut host = Host::new(&Scale, limits(64, 1 << 20, 1 << 20));
    let mut first = host.admit();
    let mut second = host.admit();
    for caller in [&mut first, &mut second] {
        assert_eq!(host.call(caller, b"served"), b"served");
    }
    drop(first);
    host.run(&mut [&mut second], |host, _| host.transport.connections() == 1);
    for _ in 0..200 {
        assert_eq!(host.call(&mut second, b"in the place now"), b"in the place now");
    }
}
