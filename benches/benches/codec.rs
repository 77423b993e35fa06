//! The cost of the codec: writing a value into reserved memory, and reading it back.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use farcall_core::codec::{
    As, Decode, Encode, Fixed, Raw, Reader, Serde, Whole, decode, encode, encoded_len,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order<'a> {
    id: u64,
    customer: &'a str,
    lines: [(u32, u16); 4],
}

/// Length, reserved memory and bytes, as in a client's stub.
fn write<F: Encode<T>, T: ?Sized>(value: &T, memory: &mut [u8]) -> usize {
    let payload = As::<F, T>::new(value);
    let len = encoded_len(&payload).expect("it has a length");
    encode(&payload, &mut memory[..len]).expect("it fits its own length");
    len
}

/// As in a server's dispatch.
fn read<'m, F: Decode<'m, T>, T>(message: &'m [u8]) -> T {
    decode::<F, T>(Reader::borrowed(message)).expect("it was just written")
}

fn codec(criterion: &mut Criterion) {
    let mut memory = vec![0; 8192];

    let array = [7u8; 32];
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Bytes(32));
    group.bench_function("array of 32 bytes, write", |bencher| {
        bencher.iter(|| write::<Fixed, _>(black_box(&array), black_box(&mut memory)));
    });
    let len = write::<Fixed, _>(&array, &mut memory);
    group.bench_function("array of 32 bytes, read", |bencher| {
        bencher.iter(|| read::<Fixed, [u8; 32]>(black_box(&memory[..len])));
    });

    let page = vec![7u8; 4096];
    group.throughput(Throughput::Bytes(4096));
    group.bench_function("4 KiB as the whole message, write", |bencher| {
        bencher.iter(|| write::<Whole, _>(black_box(&page[..]), black_box(&mut memory)));
    });
    let len = write::<Raw, _>(&page[..], &mut memory);
    group.bench_function("4 KiB among other arguments, read borrowed", |bencher| {
        bencher.iter(|| read::<Raw, &[u8]>(black_box(&memory[..len])).len());
    });

    let lines = [(1, 2), (3, 4), (5, 6), (7, 8)];
    let order = Order { id: 1 << 40, customer: "a customer's name", lines };
    let len = write::<Serde, _>(&order, &mut memory);
    group.throughput(Throughput::Bytes(len as u64));
    group.bench_function("struct by serde, write", |bencher| {
        bencher.iter(|| write::<Serde, _>(black_box(&order), black_box(&mut memory)));
    });
    group.bench_function("struct by serde, read", |bencher| {
        bencher.iter(|| {
            let order = read::<Serde, Order<'_>>(black_box(&memory[..len]));
            order.id + order.customer.len() as u64 + u64::from(order.lines[3].0)
        });
    });
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
