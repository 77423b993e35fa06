#![deny(unused_must_use)]

use farcall::bulk::{BulkClient, Download};

fn forget_to_read(load: impl Fn() -> Download<u64>) {
    load();
}

fn forget_to_wait(download: Download<u64>, bulk: &BulkClient) {
    download.read(bulk);
}

fn main() {}
