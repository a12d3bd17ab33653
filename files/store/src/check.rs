//! The rules that metadata follow.

use std::collections::HashMap;

use crate::limits::BLOCK_BYTES;
use crate::space::Run;
use crate::state::{Inode, Node, ROOT, State};

/// The rules that the state violates, as sentences.
pub(crate) fn problems(state: &State, data: Run, reserved: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let mut links: HashMap<u64, u32> = HashMap::new();
    let mut parents: HashMap<u64, u64> = HashMap::from([(ROOT, ROOT)]);
    for (&id, inode) in &state.inodes {
        let Node::Directory(directory) = &inode.node else {
            continue;
        };
        for (name, child) in directory.entries.values() {
            let name = String::from_utf8_lossy(&name.0);
            let Some(object) = state.inodes.get(child) else {
                problems.push(format!("entry {name} of {id} has no object {child}"));
                continue;
            };
            *links.entry(*child).or_default() += 1;
            if object.is_directory() {
                *links.entry(id).or_default() += 1;
                if parents.insert(*child, id).is_some() {
                    problems.push(format!("directory {child} has two entries"));
                }
            }
        }
        if directory.index.len() != directory.entries.len() {
            problems.push(format!("directory {id} has a wrong index"));
        }
    }
    let mut blocks: HashMap<u64, u32> = HashMap::new();
    let mut shares: HashMap<u32, (u64, u64)> = HashMap::new();
    for (&id, inode) in &state.inodes {
        let own = u32::from(inode.is_directory() && inode.links > 0);
        let root = u32::from(id == ROOT);
        let found = links.get(&id).copied().unwrap_or(0) + own + root;
        if found != inode.links {
            problems.push(format!(
                "object {id} has {} links and {found} entries",
                inode.links
            ));
        }
        if (inode.links == 0) != state.orphans.contains(&id) {
            problems.push(format!(
                "object {id} is wrongly listed among those without links"
            ));
        }
        if let Node::Directory(directory) = &inode.node
            && inode.links > 0
            && parents.get(&id) != Some(&directory.parent)
        {
            problems.push(format!("directory {id} has a wrong parent"));
        }
        let share = shares.entry(inode.share).or_default();
        share.0 += 1;
        share.1 += file_problems(id, inode, data, &mut blocks, &mut problems);
    }
    for (id, share) in &state.shares {
        let found = shares.get(id).copied().unwrap_or_default();
        if found != (share.inodes, share.blocks) {
            problems.push(format!("share {id} has a wrong account"));
        }
    }
    for (&block, &references) in &blocks {
        if state.space.references(block) != references {
            problems.push(format!("block {block} has a wrong number of references"));
        }
    }
    let used = data.count - state.space.free_blocks() - state.space.retired_blocks();
    if used != blocks.len() as u64 + reserved {
        problems.push(format!(
            "{used} blocks are in use, and {} in files",
            blocks.len()
        ));
    }
    problems
}

/// Checks the blocks of a file and counts their references. Returns their number.
fn file_problems(
    id: u64,
    inode: &Inode,
    data: Run,
    blocks: &mut HashMap<u64, u32>,
    problems: &mut Vec<String>,
) -> u64 {
    let Node::File(file) = &inode.node else {
        return 0;
    };
    let mut count = 0;
    let mut end = 0;
    for (&first, &(device, length)) in &file.blocks {
        if first < end || device < data.start || device + length > data.end() {
            problems.push(format!("file {id} has wrong blocks at {first}"));
        }
        end = first + length;
        count += length;
        for block in device..device + length {
            *blocks.entry(block).or_default() += 1;
        }
    }
    if count != file.block_count {
        problems.push(format!("file {id} has a wrong number of blocks"));
    }
    for range in file.written.iter() {
        let touched = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let has_blocks = touched.clone().all(|block| file.block(block).is_some());
        if range.end > file.size || !has_blocks {
            problems.push(format!(
                "file {id} has no place for written bytes at {}",
                range.start
            ));
        }
    }
    count
}
