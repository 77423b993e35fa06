//! Damage: bits that flip, files that are missing.
