//! What decoding allocates for messages of few bytes that stand for large values. Alone in its process, because it counts what the
//! process allocates.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::any::type_name;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bolero::check;
use farcall_core::codec::growing::{self, GrowFrom};
use farcall_core::codec::{Decode, DecodeError, Fixed, Opt, Reader, Seq, Serde, decode};
use serde::{Deserialize, Deserializer};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The limit of the values of a message: for each byte, and for any message.
const VALUES_PER_BYTE: usize = 64;
const VALUES_OF_ANY: usize = 4 << 20;

/// Collections take more than their elements: while they grow, and in nodes that are not full.
const COLLECTIONS: usize = 2;

/// Bytes of a hostile message.
const MESSAGE_BYTES: usize = 1 << 20;

/// 512 bytes in memory, and 64 or more in a message.
type Large = [[u64; 32]; 2];

/// One test runs at a time: what another allocates, also for its messages, would be counted.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let region = Region::new(GLOBAL);
    let value = work();
    (value, region.change().bytes_allocated)
}

#[track_caller]
fn decode_within_bounds<F: for<'m> Decode<'m, T>, T>(message: &[u8]) -> Result<(), DecodeError> {
    let (decoded, allocated) = counted(|| decode::<F, T>(Reader::borrowed(message)).map(drop));
    let most = COLLECTIONS * (VALUES_PER_BYTE * message.len() + VALUES_OF_ANY);
    assert!(allocated <= most, "{allocated} bytes for {} of {}", message.len(), type_name::<T>());
    decoded
}

/// A sequence of as many elements as fit, each of these bytes.
fn sequence(element: &[u8]) -> Vec<u8> {
    let elements = MESSAGE_BYTES / element.len();
    [&length(elements)[..], &element.repeat(elements)].concat()
}

/// A length as messages have it: seven bits in each byte.
fn length(mut length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only allocated")]
#[expect(clippy::large_enum_variant, reason = "it is what the tests are about")]
enum Event {
    Nothing,
    Much(Large),
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only allocated")]
struct Skipped {
    #[serde(skip)]
    defaults: [u64; 32],
}

/// A struct that may grow: one byte says that it has no fields.
#[expect(dead_code, reason = "only allocated")]
struct Settings(Large);

impl<'de> GrowFrom<'de> for Settings {
    const NAME: &'static str = growing::NAME;

    fn deserialize_body<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Body {
            #[serde(default)]
            large: Option<Large>,
        }
        Ok(Settings(Body::deserialize(deserializer)?.large.unwrap_or_default()))
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        growing::deserialize(deserializer)
    }
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only allocated")]
struct Tree {
    children: Vec<Tree>,
    weight: Option<Large>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only allocated")]
#[expect(clippy::large_enum_variant, reason = "it is what the tests are about")]
enum List {
    End,
    More(Option<Large>, Box<List>),
}

#[track_caller]
fn assert_refused(decoded: Result<(), DecodeError>) {
    assert!(matches!(decoded, Err(DecodeError::TooMuchMemory { .. })), "{decoded:?}");
}

#[test]
fn elements_of_a_byte_that_are_large_in_memory_are_refused() {
    let _alone = alone();
    assert_refused(decode_within_bounds::<Serde, Vec<Option<Large>>>(&sequence(&[0])));
    assert_refused(decode_within_bounds::<Serde, Vec<Event>>(&sequence(&[0])));
    assert_refused(decode_within_bounds::<Serde, Vec<Settings>>(&sequence(&[0])));
    assert_refused(decode_within_bounds::<Serde, Vec<(Option<Large>, u8)>>(&sequence(&[0, 7])));
    type Bytes = Option<[u8; 4096]>;
    assert_refused(decode_within_bounds::<Seq<Opt<Fixed>>, Vec<Bytes>>(&sequence(&[0])));
}

#[test]
fn boxes_of_two_bytes_that_are_large_in_memory_are_refused() {
    let _alone = alone();
    assert_refused(decode_within_bounds::<Serde, Vec<Option<Box<Event>>>>(&sequence(&[1, 0])));
    assert_refused(decode_within_bounds::<Serde, Vec<Box<Settings>>>(&sequence(&[0])));
    assert_refused(decode_within_bounds::<Serde, Vec<(u8, Box<Option<Large>>)>>(&sequence(&[
        7, 0,
    ])));
}

#[test]
fn short_sequences_of_large_elements_are_refused_too() {
    let _alone = alone();
    assert_refused(decode_within_bounds::<Serde, Vec<Vec<Event>>>(&sequence(&[3, 0, 0, 0])));
    type Bytes = Option<[u8; 4096]>;
    let short = sequence(&[3, 0, 0, 0]);
    assert_refused(decode_within_bounds::<Seq<Seq<Opt<Fixed>>>, Vec<Vec<Bytes>>>(&short));
    assert_refused(decode_within_bounds::<Serde, Vec<BTreeMap<u8, Event>>>(&sequence(&[1, 7, 0])));
    assert_refused(decode_within_bounds::<Serde, Vec<HashMap<u8, Event>>>(&sequence(&[1, 7, 0])));
    assert_refused(decode_within_bounds::<Serde, Vec<BTreeMap<u8, [String; 4]>>>(&sequence(&[
        1, 7, 0, 0, 0, 0,
    ])));
}

#[test]
fn elements_of_no_bytes_are_refused_if_they_are_large_in_memory() {
    let _alone = alone();
    let decoded = decode_within_bounds::<Serde, Vec<Skipped>>(&length(60_000));
    assert_refused(decoded);
    assert_eq!(decode_within_bounds::<Serde, Vec<()>>(&length(60_000)), Ok(()));
}

#[test]
fn memory_that_is_reserved_before_elements_come_counts() {
    let _alone = alone();
    // Each of a hundred sequences is said to be as long as the message, and has one element: the next.
    let claims = [length(MESSAGE_BYTES / 100).repeat(100), vec![0; MESSAGE_BYTES]].concat();
    assert!(decode_within_bounds::<Serde, Tree>(&claims).is_err());
    let nested = [[1, 0].repeat(100), vec![0]].concat();
    assert_eq!(decode_within_bounds::<Serde, List>(&nested), Ok(()));
}

#[test]
fn vectors_of_one_element_count_what_they_have_room_for() {
    let _alone = alone();
    // Memory is reserved for the first of them only; each of the others has room for four.
    let ones = [length(1 << 17), vec![1; 1 << 17]].concat();
    assert_refused(decode_within_bounds::<Serde, BTreeMap<u8, Vec<Skipped>>>(&ones));
    assert_refused(decode_within_bounds::<Serde, Vec<Vec<Skipped>>>(&ones));
    let few = [length(2_000), vec![1; 4_000]].concat();
    assert_eq!(decode_within_bounds::<Serde, BTreeMap<u8, Vec<Skipped>>>(&few), Ok(()));
}

#[test]
fn several_arguments_share_what_their_message_may_take() {
    let _alone = alone();
    let half = [length(5_000), vec![0; 5_000]].concat();
    let twice = half.repeat(2);
    assert_eq!(decode_within_bounds::<Serde, Vec<Event>>(&half), Ok(()));
    type Pair = (Vec<Event>, Vec<Event>);
    assert_refused(decode_within_bounds::<(Serde, Serde), Pair>(&twice));
    // The limit is the message's, also within a value that has its own length in front.
    let mut large = vec![1];
    large.extend([7; 64]);
    let settings = [length(large.len()), large].concat();
    let most = settings.repeat(20_000);
    let message = [length(20_000), most].concat();
    assert_eq!(decode_within_bounds::<Serde, Vec<Settings>>(&message), Ok(()));
}

#[test]
fn what_honest_programs_send_is_decoded() {
    let _alone = alone();
    assert_eq!(decode_within_bounds::<Serde, Vec<u64>>(&sequence(&[1])), Ok(()));
    assert_eq!(decode_within_bounds::<Serde, Vec<String>>(&sequence(&[0])), Ok(()));
    assert_eq!(decode_within_bounds::<Serde, Vec<[f64; 3]>>(&sequence(&[7; 24])), Ok(()));
    assert_eq!(
        decode_within_bounds::<Serde, Vec<(u64, u64, u64, u64)>>(&sequence(&[1; 4])),
        Ok(())
    );
    assert_eq!(decode_within_bounds::<Serde, Vec<Option<Box<Large>>>>(&sequence(&[0])), Ok(()));
    assert_eq!(decode_within_bounds::<Serde, Vec<Vec<u64>>>(&sequence(&[1, 1])), Ok(()));
    type Options = Vec<BTreeMap<String, String>>;
    let option = *b"\x01\x07timeout\x0310s";
    assert_eq!(decode_within_bounds::<Serde, Options>(&sequence(&option)), Ok(()));
    // Large and nearly empty, but not many.
    let few = [length(7_000), vec![0; 7_000]].concat();
    assert_eq!(decode_within_bounds::<Serde, Vec<Option<Large>>>(&few), Ok(()));
    let full = [vec![1], vec![9; 64]].concat();
    assert_eq!(decode_within_bounds::<Serde, Vec<Event>>(&sequence(&full)), Ok(()));
}

/// Messages in which a few bytes are repeated take memory in proportion, as each of these types.
#[test]
fn repeated_bytes_take_memory_in_proportion() {
    let _alone = alone();
    // Lengths, flags and variants.
    const BYTES: [u8; 8] = [0, 0, 0, 1, 1, 2, 3, 0xff];
    check!().with_max_len(16).for_each(|input: &[u8]| {
        let element: Vec<u8> = input.iter().map(|byte| BYTES[usize::from(byte % 8)]).collect();
        let elements = (1 << 17) / element.len().max(1);
        let message = [length(elements), element.repeat(elements)].concat();
        let _ = decode_within_bounds::<Serde, Vec<Event>>(&message);
        let _ = decode_within_bounds::<Serde, Vec<Vec<Option<Large>>>>(&message);
        let _ = decode_within_bounds::<Serde, Vec<Option<Box<Settings>>>>(&message);
        let _ = decode_within_bounds::<Serde, Vec<Tree>>(&message);
        let _ = decode_within_bounds::<Serde, Vec<List>>(&message);
        let _ = decode_within_bounds::<Serde, Vec<BTreeMap<u8, Event>>>(&message);
        let _ = decode_within_bounds::<Serde, BTreeMap<u8, Vec<Skipped>>>(&message);
        let _ = decode_within_bounds::<Seq<Seq<Opt<Fixed>>>, Vec<Vec<Option<[u8; 600]>>>>(&message);
    });
}
