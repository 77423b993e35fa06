//! What every farcall verbs device must do, as a suite generic over the device.
