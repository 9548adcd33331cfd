//! Structure out of bytes: choices first, raw content last, so that seeds can be written down.

/// What is left of an input. Reading past its end gives zeros: every input is valid.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole input.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The lowest bit of the next byte.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// The next two bytes, the high one first.
    pub fn number(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// One of `choices`, by the next byte.
    ///
    /// # Panics
    /// If there are none.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// The next `len` bytes, or what is left.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Bytes of which the input says how many, fewer than 256.
    pub fn piece(&mut self) -> &'a [u8] {
        let len = self.byte();
        self.take(len.into())
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}
