#[farcall::service]
trait Store {
    fn put(&self, value: impl Into<String>);
    fn all(&self) -> impl Iterator<Item = u64>;
    fn later(&self) -> impl std::future::Future<Output = u64> + Send;
}

fn main() {}
