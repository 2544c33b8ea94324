// RUN: pcp-opt %s --pcp-stage='microbatches=2' --pcp-schedule='kind=gpipe' --pcp-lower-schedule --pcp-lower-to-runtime --allow-unregistered-dialect | filecheck %s
