//! The answer to a call, which another thread gives.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

struct Cell<T> {
    value: Option<T>,
    is_over: bool,
    waker: Option<Waker>,
}

/// Gives the answer, at most once. Dropping it ends the wait.
pub(super) struct Answerer<T>(Arc<Mutex<Cell<T>>>);

/// The answer: nothing, if the one who should give it is gone.
pub(super) struct Answer<T>(Arc<Mutex<Cell<T>>>);

/// An answer, and who gives it.
pub(super) fn answer<T>() -> (Answerer<T>, Answer<T>) {
    let cell = Arc::new(Mutex::new(Cell { value: None, is_over: false, waker: None }));
    (Answerer(Arc::clone(&cell)), Answer(cell))
}

fn lock<T>(cell: &Mutex<Cell<T>>) -> MutexGuard<'_, Cell<T>> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Answerer<T> {
    pub(super) fn give(self, value: T) {
        lock(&self.0).value = Some(value);
    }
}

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        let mut cell = lock(&self.0);
        cell.is_over = true;
        let waker = cell.waker.take();
        drop(cell);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut cell = lock(&self.0);
        if cell.value.is_some() || cell.is_over {
            return Poll::Ready(cell.value.take());
        }
        cell.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
