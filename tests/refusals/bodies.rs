#[farcall::service]
trait Store {
    fn get(&self, key: u64) -> u64 {
        key
    }
}

fn main() {}
