macro_rules! methods {
    () => {};
}

#[farcall::service]
trait Store {
    const VERSION: u32;
    type Key;
    methods!();
    fn get(&self, key: u64) -> Self::Key;
    fn other(&self) -> Self
    where
        Self: Sized;
}

fn main() {}
