#[farcall::service]
trait Store {
    fn close(self);
    fn put(&mut self, value: u64);
    fn get(self: Box<Self>) -> u64;
    fn version() -> u32;
    fn named<'a>(&'a self);
}

fn main() {}
