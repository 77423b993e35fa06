use std::borrow::Cow;

#[farcall::service]
trait Store {
    fn get(&self, key: u64) -> &[u8];
    fn name(&self) -> Option<&'static str>;
    fn text(&self) -> Result<Cow<'_, str>, &str>;
}

fn main() {}
