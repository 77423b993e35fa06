#[farcall::service]
trait Store {
    fn put<V: serde::Serialize>(&self, value: V);
    fn get<'a>(&self, key: &'a [u8]) -> u64;
    fn count<const N: usize>(&self) -> u64
    where
        Self: Sized;
}

fn main() {}
