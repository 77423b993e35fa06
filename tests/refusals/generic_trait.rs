#[farcall::service]
trait Store<K>
where
    K: Ord,
{
    fn get(&self, key: u64) -> u64;
}

fn main() {}
