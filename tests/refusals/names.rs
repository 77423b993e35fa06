#[farcall::service]
trait Store {
    fn get(&self);
    fn start_get(&self);
    fn connect(&self);
    fn clone(&self);
}

#[farcall::service]
trait Twice {
    fn get(&self);
    fn get(&self, key: u64);
}

fn main() {}
