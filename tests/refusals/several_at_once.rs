#[farcall::service]
trait Store {
    const VERSION: u32;
    fn put(&mut self, value: impl Into<String>);
    async fn get(&self, key: &str) -> &str;
}

// The trait itself is still there, so that what uses it does not fail as well.
struct Empty;
impl Store for Empty {
    const VERSION: u32 = 1;
    fn put(&mut self, _value: impl Into<String>) {}
    async fn get(&self, _key: &str) -> &str {
        ""
    }
}

fn main() {}
