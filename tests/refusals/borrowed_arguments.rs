#[farcall::service]
trait Store {
    fn put(&self, key: &'static str, value: &mut Vec<u8>);
    fn all(&self, keys: Option<&Vec<u64>>);
}

fn main() {}
