//! What holds wherever the memory is and however operations travel.

use farcall::Bytes;
use farcall::memory::{
    BatchError, Counted, Denied, MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_OPERATION_BYTES,
    MemoryError, Outcome, Remote, Rights,
};
use serde_json::{Value, json};

use crate::access::Access;
use crate::lender::{Borrowed, REGION_BYTES};

const END: u64 = REGION_BYTES as u64;

/// Gives the names of all cases to a macro.
macro_rules! for_each_case {
    ($with:ident) => {
        $with! {
            bytes_of_any_length_are_written_and_read;
            atomic_operations_change_words_and_give_what_they_were;
            a_batch_is_done_in_order_until_an_operation_fails;
            of_a_batch_that_meets_a_revoke_nothing_is_done_twice;
            a_lend_permits_what_it_says;
            guessed_values_give_no_access;
            a_slice_reaches_no_further_than_its_lend;
            what_no_device_could_do_is_refused_before_it_is_sent;
            a_revoked_lend_gives_errors_and_never_the_next_bytes;
            a_lease_ends_by_itself_and_not_before;
            a_region_that_is_dropped_takes_its_lends_along;
        }
    };
}

pub(crate) use for_each_case;

pub(crate) fn no_such_lend() -> MemoryError {
    MemoryError::NotPermitted(Denied::NoSuchLend)
}

impl<M> Borrowed<M> {
    /// A part of the region until it is revoked.
    async fn lent(&self, begin: u64, end: u64, rights: Rights) -> Remote {
        self.lender.lend(begin, end, rights.bits(), None).await.unwrap()
    }
}

/// The value with some parts as a hostile client would set them.
fn forged(value: &Remote, parts: Value) -> Remote {
    let mut forged = serde_json::to_value(value).unwrap();
    for (part, value) in parts.as_object().unwrap() {
        assert!(forged.get(part).is_some(), "no part {part}");
        forged[part] = value.clone();
    }
    serde_json::from_value(forged).unwrap()
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into()
}

pub(crate) async fn bytes_of_any_length_are_written_and_read<M: Access>(client: Borrowed<M>) {
    let lent = client.lent(0, END, Rights::READ | Rights::WRITE).await;
    for len in [0, 1, 7, 8, 9, 63, 64, 65, 1023, 1024, 1025, 4096, 4097, 65_535, 65_536] {
        let part = lent.slice(END - len..).unwrap();
        let before = (END - len).checked_sub(1);
        if let Some(before) = before {
            client.lender.store(before, Bytes::from_static(&[0xaa])).await.unwrap();
        }
        let bytes = pattern(len as usize);
        client.memory.write(&part, bytes.clone()).await.unwrap();
        assert_eq!(client.memory.read(&part).await.unwrap(), bytes, "{len}");
        assert_eq!(client.lender.load(END - len, len).await.unwrap(), bytes, "{len}");
        if before.is_some() {
            assert_eq!(client.lender.load(END - len - 1, 1).await.unwrap()[..], [0xaa], "{len}");
        }
    }
    client.lender.store(100, Bytes::from_static(b"the owner's")).await.unwrap();
    assert_eq!(
        &client.memory.read(&lent.slice(100..111).unwrap()).await.unwrap()[..],
        b"the owner's"
    );
}

pub(crate) async fn atomic_operations_change_words_and_give_what_they_were<M: Access>(
    client: Borrowed<M>,
) {
    let lent = client.lent(64, 128, Rights::ATOMIC | Rights::READ).await;
    let word = lent.word(8).unwrap();
    let memory = &client.memory;
    assert_eq!(memory.fetch_add(&word, 5).await, Ok(0));
    assert_eq!(memory.fetch_add(&word, u64::MAX).await, Ok(5));
    assert_eq!(memory.compare_and_swap(&word, 4, 7).await, Ok(4));
    assert_eq!(memory.compare_and_swap(&word, 4, 9).await, Ok(7), "it is not 4 any more");
    assert_eq!(memory.read(&word).await.unwrap()[..], 7u64.to_ne_bytes());
    for other in [0, 16] {
        assert_eq!(memory.fetch_add(&lent.word(other).unwrap(), 0).await, Ok(0));
    }
}

pub(crate) async fn a_batch_is_done_in_order_until_an_operation_fails<M: Access>(
    client: Borrowed<M>,
) {
    assert_eq!(client.memory.batch().post().await, Ok(Vec::new()), "an empty one");
    let lent = client.lent(0, 64, Rights::all()).await;
    let read_only = client.lent(64, 128, Rights::READ).await;
    let (text, word) = (lent.slice(0..5).unwrap(), lent.word(8).unwrap());
    let batch = client.memory.batch();
    assert_eq!(batch.clone().post().await, Ok(vec![]));
    let batch = batch.write(&text, &b"hello"[..]).fetch_add(&word, 3).fence();
    let batch = batch.compare_and_swap(&word, 3, 4).read(&text).read(&word);
    let outcomes = batch.post().await.unwrap();
    let read = |bytes: &[u8]| Outcome::Read(Bytes::copy_from_slice(bytes));
    let expected = [
        Outcome::Written,
        Outcome::Word(0),
        Outcome::Word(3),
        read(b"hello"),
        read(&4u64.to_ne_bytes()),
    ];
    assert_eq!(outcomes, expected);

    let batch = client.memory.batch().fetch_add(&word, 1);
    let batch = batch.write(&read_only.slice(0..1).unwrap(), &b"x"[..]).fetch_add(&word, 100);
    let error = MemoryError::NotPermitted(Denied::Write);
    assert_eq!(batch.post().await, Err(BatchError { at: 1, error }));
    assert_eq!(client.memory.fetch_add(&word, 0).await, Ok(5), "the first alone was done");
}

/// On a lane, the device says which operation has failed, though only the last was to be reported.
pub(crate) async fn of_a_batch_that_meets_a_revoke_nothing_is_done_twice<M: Access>(
    client: Borrowed<M>,
) {
    let word = client.lent(0, 8, Rights::all()).await;
    let mut count = 0;
    for round in 0..4 {
        let taken = client.lent(64, 128, Rights::all()).await;
        // A lane has used both.
        for _ in 0..3 {
            client.memory.read(&taken).await.unwrap();
            assert_eq!(client.memory.fetch_add(&word, 1).await, Ok(count), "{round}");
            count += 1;
        }
        assert_eq!(client.lender.revoke(taken).await, Ok(true));
        let batch = client.memory.batch().fetch_add(&word, 1).read(&word);
        let batch = batch.write(&taken.slice(0..8).unwrap(), vec![1; 8]).fetch_add(&word, 1_000);
        let error = MemoryError::Revoked;
        assert_eq!(batch.post().await, Err(BatchError { at: 2, error }), "{round}");
        count += 1;
        assert_eq!(client.memory.fetch_add(&word, 0).await, Ok(count), "{round}: done once");
    }
}

pub(crate) async fn a_lend_permits_what_it_says<M: Access>(client: Borrowed<M>) {
    for rights in [Rights::READ, Rights::WRITE, Rights::ATOMIC, Rights::empty(), Rights::all()] {
        let lent = client.lent(0, 8, rights).await;
        let expected = |right: Rights, denied| match rights.contains(right) {
            true => Ok(()),
            false => Err(MemoryError::NotPermitted(denied)),
        };
        let memory = &client.memory;
        assert_eq!(memory.read(&lent).await.map(drop), expected(Rights::READ, Denied::Read));
        let written = memory.write(&lent, vec![0; 8]).await;
        assert_eq!(written, expected(Rights::WRITE, Denied::Write));
        let atomic = || expected(Rights::ATOMIC, Denied::Atomic);
        assert_eq!(memory.fetch_add(&lent, 0).await.map(drop), atomic());
        assert_eq!(memory.compare_and_swap(&lent, 1, 2).await.map(drop), atomic());
    }
}

pub(crate) async fn guessed_values_give_no_access<M: Access>(client: Borrowed<M>) {
    let lent = client.lent(1024, 2048, Rights::all()).await;
    // A lane knows it.
    for _ in 0..2 {
        client.memory.read(&lent).await.unwrap();
    }
    let lives = json!({ "life": 1 });
    let guesses = [
        json!({ "lend": 999 }),
        json!({ "lend": u32::MAX }),
        json!({ "epoch": 0 }),
        json!({ "epoch": 1_000_000 }),
        json!({ "epoch": u32::MAX }),
        json!({ "key": 0 }),
        json!({ "key": u64::MAX }),
    ];
    let secret = Bytes::from_static(b"not lent");
    client.lender.store(1024, secret.clone()).await.unwrap();
    for (parts, expected) in guesses
        .into_iter()
        .map(|parts| (parts, no_such_lend()))
        .chain([(lives, MemoryError::FormerLife)])
    {
        let guess = forged(&lent, parts.clone()).slice(0..8).unwrap();
        assert_eq!(client.memory.read(&guess).await, Err(expected.clone()), "{parts}");
        assert_eq!(client.memory.write(&guess, vec![1; 8]).await, Err(expected.clone()), "{parts}");
        assert_eq!(client.memory.fetch_add(&guess, 1).await, Err(expected), "{parts}");
    }
    assert_eq!(client.lender.load(1024, 8).await.unwrap(), secret);
    assert_eq!(client.memory.read(&lent.slice(0..8).unwrap()).await.unwrap(), secret);
}

pub(crate) async fn a_slice_reaches_no_further_than_its_lend<M: Access>(client: Borrowed<M>) {
    let lent = client.lent(1024, 2048, Rights::all()).await;
    assert_eq!(
        lent.slice(0..1025),
        Err(MemoryError::OutOfRange { offset: 0, len: 1025, of: 1024 })
    );
    let all = pattern(REGION_BYTES);
    client.lender.store(0, all.clone()).await.unwrap();
    for (offset, len) in [
        (1023, 1),
        (1023, 2),
        (1024, 1025),
        (2047, 2),
        (2048, 1),
        (2049, 0),
        (0, 8),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (u64::MAX, MAX_OPERATION_BYTES),
    ] {
        let beyond = forged(&lent, json!({ "offset": offset, "len": len }));
        let out_of_range =
            |error: MemoryError| matches!(error, MemoryError::OutOfRange { of: 1024, .. });
        assert!(out_of_range(client.memory.read(&beyond).await.unwrap_err()), "{offset} {len}");
        let bytes = vec![0; len as usize];
        assert!(out_of_range(client.memory.write(&beyond, bytes).await.unwrap_err()));
    }
    let beyond = forged(&lent, json!({ "offset": 2048, "len": 8 }));
    let error = client.memory.fetch_add(&beyond, 1).await;
    assert_eq!(error, Err(MemoryError::OutOfRange { offset: 1024, len: 8, of: 1024 }));
    assert_eq!(client.lender.load(0, END).await.unwrap(), all, "nothing has changed");
}

pub(crate) async fn what_no_device_could_do_is_refused_before_it_is_sent<M: Access>(
    client: Borrowed<M>,
) {
    let lent = client.lent(8, 1024, Rights::all()).await;
    let memory = &client.memory;
    for (begin, end) in [(1, 9), (4, 12), (0, 4), (0, 16), (0, 0)] {
        let (part, offset, len) = (lent.slice(begin..end).unwrap(), 8 + begin, end - begin);
        let unaligned = || Err(MemoryError::Unaligned { offset, len });
        assert_eq!(memory.fetch_add(&part, 1).await, unaligned());
        assert_eq!(memory.compare_and_swap(&part, 0, 1).await, unaligned());
    }
    for bytes in [0, 7, 9] {
        let refused = memory.write(&lent.word(0).unwrap(), vec![1; bytes]).await;
        let (len, of) = (bytes as u64, 8);
        assert_eq!(refused, Err(MemoryError::OutOfRange { offset: 0, len, of }));
    }
    let long = forged(&lent, json!({ "len": MAX_OPERATION_BYTES + 1 }));
    let (len, max) = (MAX_OPERATION_BYTES + 1, MAX_OPERATION_BYTES);
    let too_long = MemoryError::TooLong { what: Counted::Bytes, len, max };
    assert_eq!(memory.read(&long).await, Err(too_long));

    let many = (0..=MAX_BATCH_OPERATIONS).fold(memory.batch(), |batch, _| batch.read(&lent));
    let (len, max) = (MAX_BATCH_OPERATIONS as u64 + 1, MAX_BATCH_OPERATIONS as u64);
    let error = MemoryError::TooLong { what: Counted::Operations, len, max };
    assert_eq!(many.post().await, Err(BatchError { at: 0, error }));
    let half = forged(&lent, json!({ "len": MAX_BATCH_BYTES / 2 + 1 }));
    let (len, max) = (MAX_BATCH_BYTES + 2, MAX_BATCH_BYTES);
    let error = MemoryError::TooLong { what: Counted::Bytes, len, max };
    assert_eq!(
        memory.batch().read(&half).read(&half).post().await,
        Err(BatchError { at: 0, error })
    );
}

pub(crate) async fn a_revoked_lend_gives_errors_and_never_the_next_bytes<M: Access>(
    client: Borrowed<M>,
) {
    let lent = client.lent(0, 64, Rights::all()).await;
    let (part, other) = (lent.slice(8..16).unwrap(), client.lent(0, 64, Rights::READ).await);
    client.memory.write(&part, &b"original"[..]).await.unwrap();
    assert_eq!(client.lender.revoke(part).await, Ok(true));
    assert_eq!(client.lender.revoke(lent).await, Ok(false), "it was revoked by its slice");
    client.lender.store(8, Bytes::from_static(b"the next")).await.unwrap();
    assert_eq!(client.memory.read(&part).await, Err(MemoryError::Revoked));
    assert_eq!(client.memory.write(&lent, vec![0; 64]).await, Err(MemoryError::Revoked));
    assert_eq!(client.memory.fetch_add(&lent.word(8).unwrap(), 1).await, Err(MemoryError::Revoked));
    assert_eq!(&client.memory.read(&other.slice(8..16).unwrap()).await.unwrap()[..], b"the next");
    // Lent again, under the same number or another one.
    for _ in 0..3 {
        let again = client.lent(0, 64, Rights::all()).await;
        assert_eq!(client.memory.read(&part).await, Err(MemoryError::Revoked));
        assert!(client.memory.read(&again).await.is_ok());
        assert_eq!(client.lender.revoke(again).await, Ok(true));
    }
}

pub(crate) async fn a_lease_ends_by_itself_and_not_before<M: Access>(client: Borrowed<M>) {
    let short = client.lender.lend(0, 8, Rights::READ.bits(), Some(2)).await.unwrap();
    let long = client.lender.lend(0, 8, Rights::READ.bits(), Some(3_600_000)).await.unwrap();
    let mut reads = 0;
    let ended = loop {
        match client.memory.read(&short).await {
            Ok(_) => reads += 1,
            Err(why) => break why,
        }
        assert!(reads < 10_000_000, "the lease does not end");
    };
    assert_eq!(ended, MemoryError::Expired);
    assert_eq!(client.memory.read(&short).await, Err(MemoryError::Expired));
    assert!(client.memory.read(&long).await.is_ok());
    assert_eq!(client.lender.revoke(long).await, Ok(true));
}

pub(crate) async fn a_region_that_is_dropped_takes_its_lends_along<M: Access>(client: Borrowed<M>) {
    let lent = client.lent(0, 8, Rights::all()).await;
    client.memory.write(&lent, &b"original"[..]).await.unwrap();
    client.lender.replace_region().await.unwrap();
    assert_eq!(client.memory.read(&lent).await, Err(MemoryError::Revoked));
    let next = client.lent(0, 8, Rights::READ).await;
    assert_eq!(client.memory.read(&next).await.unwrap()[..], [0; 8]);
    assert_eq!(client.memory.read(&lent).await, Err(MemoryError::Revoked));
}
