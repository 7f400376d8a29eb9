"""Steps that only decode, captured once and replayed."""
