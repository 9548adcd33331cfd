//! Writes the seed corpus of the decap target: `cargo run -p windlass-fuzz --example seeds`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/decap");
    std::fs::create_dir_all(&folder)?;
    for (name, bytes) in windlass_fuzz::seeds::decap() {
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}
