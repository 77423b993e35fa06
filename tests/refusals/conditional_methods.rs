#[farcall::service]
trait Store {
    #[cfg(unix)]
    fn get(&self);
}

fn main() {}
