#[farcall::service]
trait Store {
    fn put(&self, (key, value): (u64, u64));
    fn skip(&self, _: u64);
    fn twice(&self, key: u64, key: u64);
    fn attribute(&self, #[allow(unused)] key: u64);
}

fn main() {}
