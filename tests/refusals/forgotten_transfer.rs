use farcall::bulk::{BulkClient, Download, Upload};

fn use_without_reading(download: Download<u64>) -> u64 {
    download.value
}

fn use_without_writing(upload: Upload<u64>) -> u64 {
    upload.wait()
}

fn read_twice(download: Download<u64>, bulk: &BulkClient) {
    let _first = download.read(bulk).wait();
    let _second = download.read(bulk).wait();
}

fn main() {}
