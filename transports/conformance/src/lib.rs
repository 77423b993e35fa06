//! What every farcall backend must do, as a suite generic over the backend.
