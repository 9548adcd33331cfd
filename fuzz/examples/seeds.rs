//! Writes the seeds of every target into its corpus: `cargo run -p windlass-fuzz --example seeds`.

use std::path::Path;

use windlass_fuzz::TARGETS;

fn main() -> std::io::Result<()> {
    for target in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (name, bytes) in (target.seeds)() {
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
