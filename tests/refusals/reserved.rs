#[farcall::service(reserved = ["old", 7])]
trait Store {
    fn old(&self);
    #[rpc(id = 7)]
    fn get(&self);
    fn put(&self);
}

#[farcall::service(reserved = [old])]
trait NotQuoted {}

#[farcall::service(reserved = [true])]
trait NotAName {}

fn main() {}
