use std::io;

#[farcall::service]
trait Store {
    fn get(&self, key: u64) -> io::Result<u64>;
}

fn main() {}
