//! Where desired state comes from.
