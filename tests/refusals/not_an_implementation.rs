#[farcall::service]
trait Store {
    fn get(&self, id: u64) -> u64;
}

struct Nothing;

struct Unshared(std::cell::Cell<u64>);

impl Store for Unshared {
    fn get(&self, id: u64) -> u64 {
        self.0.replace(id)
    }
}

fn main() {
    StoreServer::new(Nothing);
    StoreServer::new(Unshared(std::cell::Cell::new(0)));
}
