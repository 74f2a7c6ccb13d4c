//! Everything that the fuzzer has found holds its laws.

use std::fs;
use std::path::Path;

#[path = "../../fuzz/laws.rs"]
mod laws;

#[test]
fn every_file_of_the_fuzzers_corpus_holds_the_laws() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/sources");
    let files: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 10);
    for file in files {
        laws::hold(&fs::read(&file).unwrap());
    }
}
