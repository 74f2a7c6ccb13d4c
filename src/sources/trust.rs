//! Decides what the trust file says of this workspace.

use std::fs;
use std::path::{Path, PathBuf};

use super::node::{Fault, Node};
use crate::controller::snapshot::TrustVerdict;
use crate::model::Root;

/// The verdict on `root`: of the deepest rule above it, and of two equally deep ones the one that distrusts.
///
/// # Errors
/// When the file or a rule cannot be understood.
pub fn verdict(rules: &Node, root: &Root) -> Result<TrustVerdict, Fault> {
    let mut best: Option<(usize, TrustVerdict)> = None;
    let roots = spellings(root.path());
    for (key, node) in rules.map("the trust file")? {
        let path = Path::new(key);
        let (above, verdict) = match node.text("a rule")? {
            "TRUST_FOLDER" => (path, TrustVerdict::Trusted),
            "TRUST_PARENT" => (path.parent().unwrap_or(path), TrustVerdict::Trusted),
            "DO_NOT_TRUST" => (path, TrustVerdict::Distrusted),
            _ => {
                let needed = "a rule: TRUST_FOLDER, TRUST_PARENT or DO_NOT_TRUST is needed";
                return Err(Fault::at(node.at, needed));
            }
        };
        let matched =
            spellings(above).into_iter().find(|above| roots.iter().any(|root| root.starts_with(above)));
        let Some(depth) = matched.map(|above| above.components().count()) else { continue };
        best = match best {
            Some((deepest, _)) if depth > deepest => Some((depth, verdict)),
            Some((deepest, _)) if depth == deepest && verdict == TrustVerdict::Distrusted => {
                Some((depth, verdict))
            }
            Some(best) => Some(best),
            None => Some((depth, verdict)),
        };
    }
    Ok(best.map_or(TrustVerdict::Unknown, |(_, verdict)| verdict))
}

/// A path as written, and as its links resolve.
fn spellings(path: &Path) -> Vec<PathBuf> {
    std::iter::once(path.to_owned()).chain(fs::canonicalize(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    #[test]
    fn the_deepest_rule_decides_and_distrust_wins_a_tie() {
        let root = Root::new("/".as_ref(), "/none/a/b".as_ref());
        for (rules, expected) in [
            ("{}", TrustVerdict::Unknown),
            (r#"{"/none/a/bc":"TRUST_FOLDER"}"#, TrustVerdict::Unknown),
            (r#"{"/none":"DO_NOT_TRUST","/none/a":"TRUST_FOLDER"}"#, TrustVerdict::Trusted),
            (r#"{"/none/a/b":"DO_NOT_TRUST","/none/a":"TRUST_FOLDER"}"#, TrustVerdict::Distrusted),
            (r#"{"/none/a/x":"TRUST_PARENT","/none/a":"DO_NOT_TRUST"}"#, TrustVerdict::Distrusted),
            (r#"{"/none/a/x":"TRUST_PARENT"}"#, TrustVerdict::Trusted),
        ] {
            assert_eq!(verdict(&json::parse(rules).unwrap(), &root), Ok(expected), "{rules}");
        }
        assert!(verdict(&json::parse(r#"{"/x":"TRUST"}"#).unwrap(), &root).is_err());
    }
}
