//! What moves, by how many work requests and completions, and what is never done: copying.

mod harness;

use harness::host::Host;
use harness::Stage;

#[test]
fn a_block_is_written_and_read_back() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    assert_eq!(io.accept.crqsize.get(), 32);
    io.prove_alive(&mut stage, 5, 0x5a);
}
