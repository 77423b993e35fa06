#[farcall::service(version = 2)]
trait Unknown {
    fn get(&self);
}

#[farcall::service(name = "")]
trait Empty {
    fn get(&self);
}

#[farcall::service(name = "a", name = "b")]
trait Again {
    fn get(&self);
}

#[farcall::service(require = ["put"])]
trait Required {
    fn get(&self);
}

fn main() {}
