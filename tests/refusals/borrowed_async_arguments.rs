use std::borrow::Cow;

#[farcall::service]
trait Store {
    async fn put(&self, key: &[u8], name: &str);
    async fn all(&self, keys: &[u64], options: &std::time::Duration);
    async fn some(&self, keys: Vec<&str>);
    async fn cow(&self, key: Cow<'_, str>);
}

fn main() {}
