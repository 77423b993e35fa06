#[farcall::service]
trait Store {
    #[rpc(id = 7)]
    fn get(&self);
    #[rpc(id = 7)]
    fn put(&self);
}

#[farcall::service]
trait Options {
    #[rpc(id = 0)]
    fn zero(&self);
    #[rpc(id = 4294967296)]
    fn beyond(&self);
    #[rpc(id = 1, id = 2)]
    fn twice(&self);
    #[rpc(retry)]
    fn unknown(&self);
}

#[farcall::service]
trait Idempotent {
    #[rpc(idempotent = true)]
    fn valued(&self);
}

#[farcall::service]
trait Repeated {
    #[rpc(idempotent, id = 3, idempotent)]
    fn twice(&self);
}

#[farcall::service]
trait Bare {
    #[rpc]
    fn bare(&self);
}

// These two names have the same hash.
#[farcall::service]
trait Hash {
    fn move_load_lock(&self);
    fn flush_watch_open(&self);
}

fn main() {}
