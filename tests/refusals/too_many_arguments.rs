#[farcall::service]
trait Store {
    fn put(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8);
}

fn main() {}
