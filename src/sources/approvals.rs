//! Decides what the approval store says of this workspace. The store is qwen-code's, shared with it.

use std::fs;
use std::path::Path;

use super::node::{Fault, Node};
use crate::controller::snapshot::Approvals;
use crate::model::{ApprovalStatus, Decision, Root};

/// The decisions for `root` in `store`: of every key that is the root's path, or leads to the same directory.
///
/// # Errors
/// When the store, or a record of this workspace, cannot be understood.
pub fn decisions(store: &Node, root: &Root) -> Result<Approvals, Fault> {
    let mut out = Approvals::default();
    let real = fs::canonicalize(root.path()).ok();
    let is_root = |key: &Path| key == root.path() || (real.is_some() && fs::canonicalize(key).ok() == real);
    for (key, records) in store.map("the store")? {
        if is_root(Path::new(key)) {
            for (name, record) in records.map("a workspace's decisions")? {
                out.decisions.entry(name.clone()).or_default().push(decision(name, record)?);
            }
        }
    }
    Ok(out)
}

fn decision(name: &str, record: &Node) -> Result<Decision, Fault> {
    let map = record.map(name)?;
    let text = |key: &str| match map.get(key) {
        Some(node) => node.text(&format!("{name}.{key}")),
        None => Err(Fault::at(record.at, format!("{name}.{key} is missing"))),
    };
    let status = match text("status")? {
        "approved" => ApprovalStatus::Approved,
        "rejected" => ApprovalStatus::Rejected,
        _ => return Err(Fault::at(record.at, format!("{name}.status: approved or rejected is needed"))),
    };
    Ok(Decision { digest: text("hash")?.to_owned(), status })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::json;
    use super::*;

    #[test]
    fn decisions_are_found_under_every_spelling_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        let store = format!(
            r#"{{ "{}": {{"a": {{"hash": "1", "status": "approved"}}}},
                 "{}": {{"a": {{"hash": "1", "status": "rejected"}}}},
                 "/elsewhere": {{"a": 7}} }}"#,
            link.display(),
            real.display()
        );
        let found = decisions(&json::parse(&store).unwrap(), &Root::new(dir.path(), &link)).unwrap();
        let statuses: Vec<_> = found.decisions["a"].iter().map(|decision| decision.status).collect();
        assert_eq!(statuses, [ApprovalStatus::Approved, ApprovalStatus::Rejected]);
    }

    #[test]
    fn a_damaged_record_of_this_workspace_makes_the_store_bad() {
        let root = Root::new("/".as_ref(), "/w".as_ref());
        for store in [
            "[]",
            r#"{"/w": []}"#,
            r#"{"/w": {"a": {"hash": "1"}}}"#,
            r#"{"/w": {"a": {"hash": 1, "status": "approved"}}}"#,
            r#"{"/w": {"a": {"hash": "1", "status": "maybe"}}}"#,
        ] {
            assert!(decisions(&json::parse(store).unwrap(), &root).is_err(), "{store}");
        }
        let other = json::parse(r#"{"/x": {"a": 1}}"#).unwrap();
        assert_eq!(decisions(&other, &root), Ok(Approvals::default()));
    }
}
