#[farcall::service]
trait Store {
    fn pointer(&self, p: *const u8);
    fn function(&self, f: fn(u8) -> u8);
    fn object(&self, f: Box<dyn std::fmt::Debug>);
    fn never(&self) -> !;
}

fn main() {}
