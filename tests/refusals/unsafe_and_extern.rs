#[farcall::service]
unsafe trait Raw {
    fn get(&self);
}

#[farcall::service]
trait Store {
    unsafe fn get(&self, key: u64) -> u64;
    extern "C" fn put(&self, key: u64);
}

fn main() {}
