//! What others say of what the engine emits: decoders that share no line with it, and the kernel given the same packets.

#![allow(clippy::unwrap_used, clippy::panic)]

mod clashes;
mod decoders;
mod kernel;
