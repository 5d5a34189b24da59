------------------------------- MODULE Leases -------------------------------
(***************************************************************************)
(* The lease of one workspace in a cluster, specified independently: from  *)
(* the rules (docs/decisions/0024-nodes-lease-workspaces.md and the        *)
(* docstrings of src/kedge/store/leases.py), not from the code.            *)
(*                                                                         *)
(* A process is <<node, incarnation>>. Appends and releases are sent, and  *)
(* arrive at the store later: also after their process was paused or has   *)
(* ended. A command that is refused or has no effect is not a step, except *)
(* the arrival of a request.                                               *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    NodesMax,       \* The number of nodes.
    \* The number of steps of each kind in one history:
    Restarts,       \* restarts of processes, of all nodes,
    Claims,         \* successful claims,
    Appends,        \* appends sent,
    Pauses          \* pauses of a process.

Nodes == 1 .. NodesMax
NoProcess == <<>>
NoAppend == <<>>
Nothing == 0

VARIABLES
    \* The store.
    rows,           \* The row of each node: "absent", "alive" or "expired". Its incarnation is the last one of the node.
    holder,         \* The process that holds the workspace, or NoProcess.
    token,          \* The number of claims so far.
    log,            \* The appends in the log: <<node, token>>.
    \* The processes.
    incarnation,    \* The number of the last process of each node.
    process,        \* Its state: "down", "running" or "paused".
    sure,           \* TRUE while the process is sure, by its own clock, that its row is alive.
    killed,         \* TRUE if its keeper has killed its tools: it starts no more.
    serves,         \* TRUE if it has opened the workspace.
    tool,           \* TRUE while a tool of it runs.
    remembered,     \* The token that its store object remembers; 0: none.
    \* Requests of each node on their way to the store.
    appending,      \* An append: the incarnation that sent it, with the token that its store object remembers. Or NoAppend.
    releasing,      \* A release: the incarnation that sent it. Or Nothing.
    \* The number of commands used, for those with a bound that the state does not show.
    used,
    \* An observer: the process whose claim was the last to succeed. It does not rely on the token.
    claimer

store == <<rows, holder, token, log>>
processes == <<incarnation, process, sure, killed, serves, tool, remembered>>
requests == <<appending, releasing>>
vars == <<store, processes, requests, used, claimer>>

-----------------------------------------------------------------------------
(* Helpers. *)

Use(kind, most) == used[kind] < most /\ used' = [used EXCEPT ![kind] = @ + 1]

Current(node) == <<node, incarnation[node]>>
IsAlive(one) == one # NoProcess /\ one = Current(one[1]) /\ rows[one[1]] = "alive"
\* A node that is no longer sure starts again, before it does anything else.
Acts(node) == process[node] = "running" /\ sure[node]

\* The process ends. Its keeper kills its tools.
Ends(node) ==
    /\ process' = [process EXCEPT ![node] = "down"]
    /\ sure' = [sure EXCEPT ![node] = FALSE]
    /\ killed' = [killed EXCEPT ![node] = TRUE]
    /\ serves' = [serves EXCEPT ![node] = FALSE]
    /\ tool' = [tool EXCEPT ![node] = FALSE]
    /\ remembered' = [remembered EXCEPT ![node] = 0]
    /\ UNCHANGED incarnation

-----------------------------------------------------------------------------
(* The row of a node. *)

\* A process starts again and registers. The lock of its data directory proves that the one before it has ended.
Register(node) ==
    /\ process[node] = "down"
    /\ Use("restarts", Restarts)
    /\ incarnation' = [incarnation EXCEPT ![node] = @ + 1]
    /\ rows' = [rows EXCEPT ![node] = "alive"]
    /\ process' = [process EXCEPT ![node] = "running"]
    /\ sure' = [sure EXCEPT ![node] = TRUE]
    /\ killed' = [killed EXCEPT ![node] = FALSE]
    /\ UNCHANGED <<holder, token, log, serves, tool, remembered, requests, claimer>>

\* May arrive late, so from any process. It keeps a live row alive, which is no step: the sureness of a process ends
\* as if counted from its last heartbeat.
Heartbeat(node) ==
    /\ rows[node] = "alive"
    /\ rows' = [rows EXCEPT ![node] = "alive"]
    /\ UNCHANGED <<holder, token, log, processes, requests, used, claimer>>

\* Leaves the cluster, after the workspace was closed.
Drain(node) ==
    /\ Acts(node)
    /\ rows' = [rows EXCEPT ![node] = "absent"]
    /\ holder' = IF holder = Current(node) THEN NoProcess ELSE holder
    /\ Ends(node)
    /\ UNCHANGED <<token, log, requests, used, claimer>>

-----------------------------------------------------------------------------
(* Time passes without a heartbeat: the process is no longer sure (SURE_PART of the lease), the keeper kills its tools,
   the row expires. In this order, also if the process is paused. *)

SurenessEnds(node) ==
    /\ sure[node]
    /\ sure' = [sure EXCEPT ![node] = FALSE]
    /\ UNCHANGED <<store, incarnation, process, killed, serves, tool, remembered, requests, used, claimer>>

KeeperKills(node) ==
    /\ process[node] # "down" /\ ~sure[node] /\ ~killed[node]
    /\ killed' = [killed EXCEPT ![node] = TRUE]
    /\ tool' = [tool EXCEPT ![node] = FALSE]
    /\ UNCHANGED <<store, incarnation, process, sure, serves, remembered, requests, used, claimer>>

Expire(node) ==
    /\ rows[node] = "alive"
    /\ ~sure[node] /\ killed[node]
    /\ rows' = [rows EXCEPT ![node] = "expired"]
    /\ UNCHANGED <<holder, token, log, processes, requests, used, claimer>>

-----------------------------------------------------------------------------
(* Faults of a process. *)

Pause(node) ==
    /\ process[node] = "running"
    /\ Use("pauses", Pauses)
    /\ process' = [process EXCEPT ![node] = "paused"]
    /\ UNCHANGED <<store, incarnation, sure, killed, serves, tool, remembered, requests, claimer>>

Continue(node) ==
    /\ process[node] = "paused"
    /\ process' = [process EXCEPT ![node] = "running"]
    /\ UNCHANGED <<store, incarnation, sure, killed, serves, tool, remembered, requests, used, claimer>>

Crash(node) ==
    /\ process[node] # "down"
    /\ Ends(node)
    /\ UNCHANGED <<store, requests, used, claimer>>

\* The end of a process that is no longer sure. It starts again with Register.
GiveUp(node) ==
    /\ process[node] = "running" /\ ~sure[node]
    /\ Ends(node)
    /\ UNCHANGED <<store, requests, used, claimer>>

-----------------------------------------------------------------------------
(* The workspace. *)

NextToken == token + 1

\* A process awaits the answer to its earlier release: the release would drop the new lease.
Claim(node) ==
    /\ Acts(node) /\ ~serves[node]
    /\ releasing[node] # incarnation[node]
    /\ token < Claims
    /\ rows[node] = "alive"
    /\ holder = Current(node) \/ ~IsAlive(holder)
    /\ holder' = Current(node)
    /\ token' = NextToken
    /\ remembered' = [remembered EXCEPT ![node] = NextToken]
    /\ appending' = [appending EXCEPT ![node] =
           IF @ # NoAppend /\ @[1] = incarnation[node] THEN <<incarnation[node], NextToken>> ELSE @]
    /\ serves' = [serves EXCEPT ![node] = TRUE]
    /\ claimer' = Current(node)
    /\ UNCHANGED <<rows, log, incarnation, process, sure, killed, tool, releasing, used>>

StartTool(node) ==
    /\ Acts(node) /\ serves[node]
    /\ ~killed[node] /\ ~tool[node]
    /\ tool' = [tool EXCEPT ![node] = TRUE]
    /\ UNCHANGED <<store, incarnation, process, sure, killed, serves, remembered, requests, used, claimer>>

SendAppend(node) ==
    /\ Acts(node) /\ serves[node]
    /\ appending[node] = NoAppend
    /\ Use("appends", Appends)
    /\ appending' = [appending EXCEPT ![node] = <<incarnation[node], remembered[node]>>]
    /\ UNCHANGED <<store, processes, releasing, claimer>>

\* The fence. A workspace without a holder may be written by the process that served it last.
MayWrite(one, known) ==
    /\ holder \in {NoProcess, one}
    /\ known = token

AppendArrives(node) ==
    /\ appending[node] # NoAppend
    /\ LET known == appending[node][2]
       IN  log' = IF MayWrite(<<node, appending[node][1]>>, known) THEN Append(log, <<node, known>>) ELSE log
    /\ appending' = [appending EXCEPT ![node] = NoAppend]
    /\ UNCHANGED <<rows, holder, token, processes, releasing, used, claimer>>

\* The process closes the workspace. It has ended its tools before.
SendRelease(node) ==
    /\ Acts(node) /\ serves[node]
    /\ releasing[node] = Nothing
    /\ serves' = [serves EXCEPT ![node] = FALSE]
    /\ tool' = [tool EXCEPT ![node] = FALSE]
    /\ releasing' = [releasing EXCEPT ![node] = incarnation[node]]
    /\ UNCHANGED <<store, incarnation, process, sure, killed, remembered, appending, used, claimer>>

ReleaseArrives(node) ==
    /\ releasing[node] # Nothing
    /\ holder' = IF holder = <<node, releasing[node]>> THEN NoProcess ELSE holder
    /\ releasing' = [releasing EXCEPT ![node] = Nothing]
    /\ UNCHANGED <<rows, token, log, processes, appending, used, claimer>>

-----------------------------------------------------------------------------

Init ==
    /\ rows = [node \in Nodes |-> "alive"]
    /\ holder = NoProcess /\ token = 0 /\ log = <<>>
    /\ incarnation = [node \in Nodes |-> 1]
    /\ process = [node \in Nodes |-> "running"]
    /\ sure = [node \in Nodes |-> TRUE]
    /\ killed = [node \in Nodes |-> FALSE]
    /\ serves = [node \in Nodes |-> FALSE]
    /\ tool = [node \in Nodes |-> FALSE]
    /\ remembered = [node \in Nodes |-> 0]
    /\ appending = [node \in Nodes |-> NoAppend]
    /\ releasing = [node \in Nodes |-> Nothing]
    /\ used = [restarts |-> 0, appends |-> 0, pauses |-> 0]
    /\ claimer = NoProcess

Next == \E node \in Nodes :
    \/ Register(node) \/ Heartbeat(node) \/ Drain(node)
    \/ SurenessEnds(node) \/ KeeperKills(node) \/ Expire(node)
    \/ Pause(node) \/ Continue(node) \/ Crash(node) \/ GiveUp(node)
    \/ Claim(node) \/ StartTool(node)
    \/ SendAppend(node) \/ AppendArrives(node)
    \/ SendRelease(node) \/ ReleaseArrives(node)

\* Fairness: a lost or paused process loses its sureness and its row, and a live node looks for orphans.
Spec ==
    /\ Init /\ [][Next]_vars
    /\ \A node \in Nodes :
        /\ WF_vars(SurenessEnds(node) /\ process[node] = "paused")
        /\ WF_vars(KeeperKills(node)) /\ WF_vars(Expire(node))
        /\ WF_vars(GiveUp(node)) /\ WF_vars(ReleaseArrives(node))
        /\ WF_vars(Claim(node))

-----------------------------------------------------------------------------
(* Invariants of each state. *)

AtMostOneTool == Cardinality({node \in Nodes : tool[node]}) <= 1

\* What an acting process relies on is true.
ActingProcessHasItsLease ==
    \A node \in Nodes : Acts(node) => rows[node] = "alive" /\ (serves[node] => holder = Current(node))

AtMostOneServes == Cardinality({node \in Nodes : Acts(node) /\ serves[node]}) <= 1

TokensInTheLogNeverDecrease == \A i, j \in DOMAIN log : i < j => log[i][2] <= log[j][2]

-----------------------------------------------------------------------------
(* Properties of each step. *)

AppendsHaveTheCurrentToken == [][log' # log => log'[Len(log')][2] = token]_vars

\* No process appends after another one has claimed the workspace.
OnlyTheLastClaimerAppends ==
    [][log' # log =>
           \E node \in Nodes :
               /\ appending[node] # NoAppend /\ appending'[node] = NoAppend
               /\ claimer = <<node, appending[node][1]>>]_vars

\* The arrival of an append changes nothing but the log, and that of a refused one nothing.
AppendsChangeOnlyTheLog ==
    [][(\E node \in Nodes : appending[node] # NoAppend /\ appending'[node] = NoAppend) =>
           /\ UNCHANGED <<rows, holder, token, processes, releasing, claimer>>
           /\ log' \in {log} \cup {Append(log, <<node, token>>) : node \in Nodes}]_vars

\* A live holder loses the workspace only by leaving, or by its own release.
LiveHolderIsNeverReplaced ==
    [][holder' # holder /\ IsAlive(holder) =>
           /\ holder' = NoProcess
           /\ rows'[holder[1]] = "absent" \/ (releasing[holder[1]] = holder[2] /\ releasing'[holder[1]] = Nothing)]_vars

ClaimsRaiseTheToken == [][token' >= token /\ (claimer' # claimer => token' > token)]_vars

\* Others may have taken its workspaces: a process never gets an expired row back.
ExpiredRowIsNeverRevived ==
    [][\A node \in Nodes :
           rows[node] # "alive" /\ rows'[node] = "alive" => incarnation'[node] > incarnation[node]]_vars

-----------------------------------------------------------------------------
(* Liveness. *)

\* If one node stays alive, an orphaned workspace is claimed (until the claims of the history are used up).
IsHeldByAnActingProcess == IsAlive(holder) /\ Acts(holder[1])
OrphanIsClaimed ==
    \A node \in Nodes : <>[]Acts(node) => []<>(IsHeldByAnActingProcess \/ token = Claims)
=============================================================================
