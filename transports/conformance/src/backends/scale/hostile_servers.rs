//! Servers that give places that there are not, or take them back from clients that have none.

pub(super) use crate::backends::slots::hostile_servers::*;
use crate::{
    backends::slots::{
        forge::{End, kind, message, op},
        forge_pool::STOP_NOTE,
    },
    world::World,
};

/// A response that brings its client into the place before this note.
fn noted(generation: u32, note: u16) -> Vec<u8> {
    let mut response = message(generation, kind::INLINE, &[0; 8]);
    response[6..8].copy_from_slice(&note.to_le_bytes());
    response
}

/// Places outside the pool, and a place taken back that was never given.
pub(super) fn places_that_there_are_not(world: &World) {
    type Attack = fn(&mut End, u32, u32) -> bool;
    let attacks: [(&str, Attack); 5] = [
        ("a place outside the pool", |end, slot, generation| end.send(slot, &noted(generation, 2))),
        ("no place at all", |end, slot, generation| end.send(slot, &noted(generation, 0xfffe))),
        ("a response that takes what it has not", |end, slot, generation| {
            end.send(slot, &noted(generation, STOP_NOTE))
        }),
        ("a place that it has not", |end, _, _| end.operate(op::MODE, 0)),
        ("an unknown mode", |end, _, _| end.operate(op::MODE, 5)),
    ];
    for (what, attack) in attacks {
        let ends = call_hostile_server(world, false, |mut end, slot, request| {
            attack(&mut end, slot, generation(request));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}
